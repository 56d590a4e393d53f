// The queue of requests that are not yet cut into pieces, most urgent first.
//
// Requests are ordered by StorageRequest::needed_by, then by age (ActiveRequest::sequence). Nothing
// starves: at most kMostOvertakes pieces of younger requests start before the oldest request of a
// direction, and at most as many pieces of one direction before a waiting one of the other. The
// queue holds a few dozen requests, so it uses sorted arrays: no allocation in steady state, and
// fewer cache lines than trees, which took half of a request's user-space time. Not thread-safe.
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
  // Returns the next request among reads, writes or both; null if there is none.
  ActiveRequestPtr next(bool reads, bool writes) const;
  // Records that a piece of `request`, which next() returned, was started.
  void count_start(const ActiveRequestPtr& request);
  // Removes the request if it is queued.
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
    std::vector<Entry> by_rank;         // most urgent last, so that removing it moves nothing
    std::vector<std::uint64_t> by_age;  // sequence numbers, oldest first
    std::uint32_t overtakes = 0;        // pieces started before the oldest request's
    std::uint32_t passed_over = 0;      // pieces of the other direction since this one's last

    const Entry& next() const;  // precondition: not empty
  };
  static Rank rank_of(const ActiveRequest& request);

  std::array<Direction, 2> directions_;  // by StorageOp
};

}  // namespace sluice::offload
