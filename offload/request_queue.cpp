// A priority queue with two bounds against starvation.
//
// Each direction keeps its requests sorted by rank (deadline, then age) and their sequence numbers
// sorted by age. next() takes the most urgent request, except in two cases. After kMostOvertakes
// pieces that overtook the oldest request, its direction serves the oldest. After kMostOvertakes
// pieces of the other direction, a waiting direction is served first. Insertion and removal cost
// O(log n) comparisons and move O(n) small entries; the common removal is at the end.
#include "offload/request_queue.hpp"

#include <algorithm>

#include "offload/queued_engine.hpp"

namespace sluice::offload {

RequestQueue::Rank RequestQueue::rank_of(const ActiveRequest& request) {
  return {request.request.needed_by, request.sequence};
}

const RequestQueue::Entry& RequestQueue::Direction::next() const {
  if (overtakes < kMostOvertakes) return by_rank.back();
  return *std::find_if(by_rank.begin(), by_rank.end(),
                       [&](const Entry& entry) { return entry.rank.second == by_age.front(); });
}

void RequestQueue::push(const ActiveRequestPtr& request) {
  Direction& direction = directions_[static_cast<std::size_t>(request->request.op)];
  const Rank rank = rank_of(*request);
  const auto place = std::partition_point(direction.by_rank.begin(), direction.by_rank.end(),
                                          [&](const Entry& entry) { return entry.rank > rank; });
  direction.by_rank.insert(place, {rank, request});
  // Sequence numbers only grow, so this inserts at the end.
  direction.by_age.insert(
      std::upper_bound(direction.by_age.begin(), direction.by_age.end(), request->sequence),
      request->sequence);
}

bool RequestQueue::empty() const {
  return directions_[0].by_rank.empty() && directions_[1].by_rank.empty();
}

ActiveRequestPtr RequestQueue::next(bool reads, bool writes) const {
  const Direction& reading = directions_[static_cast<std::size_t>(StorageOp::kRead)];
  const Direction& writing = directions_[static_cast<std::size_t>(StorageOp::kWrite)];
  reads = reads && !reading.by_rank.empty();
  writes = writes && !writing.by_rank.empty();
  if (!reads && !writes) return nullptr;
  if (!reads || !writes) return (reads ? reading : writing).next().request;
  if (reading.passed_over >= kMostOvertakes) return reading.next().request;
  if (writing.passed_over >= kMostOvertakes) return writing.next().request;
  const Entry& read = reading.next();
  const Entry& write = writing.next();
  return read.rank < write.rank ? read.request : write.request;
}

void RequestQueue::count_start(const ActiveRequestPtr& request) {
  const auto op = static_cast<std::size_t>(request->request.op);
  Direction& direction = directions_[op];
  Direction& other = directions_[1 - op];
  direction.passed_over = 0;
  other.passed_over = other.by_rank.empty() ? 0 : other.passed_over + 1;
  if (direction.by_age.empty()) return;
  direction.overtakes = direction.by_age.front() == request->sequence ? 0 : direction.overtakes + 1;
}

void RequestQueue::erase(const ActiveRequestPtr& request) {
  Direction& direction = directions_[static_cast<std::size_t>(request->request.op)];
  const Rank rank = rank_of(*request);
  const auto place = std::partition_point(direction.by_rank.begin(), direction.by_rank.end(),
                                          [&](const Entry& entry) { return entry.rank > rank; });
  if (place == direction.by_rank.end() || place->rank != rank) return;
  if (direction.by_age.front() == request->sequence) direction.overtakes = 0;
  direction.by_rank.erase(place);
  direction.by_age.erase(
      std::lower_bound(direction.by_age.begin(), direction.by_age.end(), request->sequence));
}

}  // namespace sluice::offload
