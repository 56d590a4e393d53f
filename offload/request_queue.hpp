// Requests that wait to be cut into pieces, the most urgent first.
//
// Order: StorageRequest::needed_by, then age (ActiveRequest::sequence). Within a direction nothing
// starves: while the oldest of a direction waits, at most kMostOvertakes pieces of younger ones are
// started before it. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "offload/storage_engine.hpp"

namespace sluice {

struct ActiveRequest;
using ActiveRequestPtr = std::shared_ptr<ActiveRequest>;

class RequestQueue {
 public:
  static constexpr std::uint32_t kMostOvertakes = 64;

  void push(const ActiveRequestPtr& request);
  bool empty() const;
  // What comes next among reads, writes or both; null where there is none.
  ActiveRequestPtr next(bool reads, bool writes) const;
  // A piece of `request`, which next() gave, was started.
  void count_start(const ActiveRequestPtr& request);
  // Takes it out, if it is here.
  void erase(const ActiveRequestPtr& request);

  template <typename Function>
  void for_each(Function function) const {
    for (const Direction& direction : directions_) {
      for (const auto& [rank, request] : direction.by_rank) function(request);
    }
  }

 private:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;  // needed_by, sequence: lower first
  struct Direction {
    std::map<Rank, ActiveRequestPtr> by_rank;
    std::map<std::uint64_t, std::uint64_t> by_age;  // sequence to needed_by
    std::uint32_t overtakes = 0;                    // pieces started before the oldest's

    Rank next_rank() const;  // not where it is empty
  };

  std::array<Direction, 2> directions_;  // by StorageOp
};

}  // namespace sluice
