// Requests that wait to be cut into pieces, the most urgent first.
//
// Order: StorageRequest::needed_by, then age (ActiveRequest::sequence). Nothing starves: while the
// oldest of a direction waits, at most kMostOvertakes pieces of younger ones are started before it,
// and while a direction waits that may start, at most as many pieces of the other. What waits is a
// few dozen, so it stands in sorted arrays: no allocation in steady state, and fewer cache lines
// than trees (half of what a request costs in user space was spent there). Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "offload/storage_engine.hpp"

namespace sluice::offload {

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
      for (const Entry& entry : direction.by_rank) function(entry.request);
    }
  }

 private:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;  // needed_by, sequence: lower first
  struct Entry {
    Rank rank;
    ActiveRequestPtr request;
  };
  struct Direction {
    std::vector<Entry> by_rank;         // the most urgent last, where taking it moves nothing
    std::vector<std::uint64_t> by_age;  // sequences, the oldest first
    std::uint32_t overtakes = 0;        // pieces started before the oldest's
    std::uint32_t passed_over = 0;      // pieces of the other direction since one of this started

    const Entry& next() const;  // not where it is empty
  };
  static Rank rank_of(const ActiveRequest& request);

  std::array<Direction, 2> directions_;  // by StorageOp
};

}  // namespace sluice::offload
