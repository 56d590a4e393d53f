#include "offload/request_queue.hpp"

#include "offload/queued_engine.hpp"

namespace sluice {

RequestQueue::Rank RequestQueue::Direction::next_rank() const {
  if (overtakes < kMostOvertakes) return by_rank.begin()->first;
  const auto& [sequence, needed_by] = *by_age.begin();
  return {needed_by, sequence};
}

void RequestQueue::push(const ActiveRequestPtr& request) {
  Direction& direction = directions_[static_cast<std::size_t>(request->request.op)];
  direction.by_rank.emplace(Rank{request->request.needed_by, request->sequence}, request);
  direction.by_age.emplace(request->sequence, request->request.needed_by);
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
  const bool take_read = reads && (!writes || reading.next_rank() < writing.next_rank());
  const Direction& direction = take_read ? reading : writing;
  return direction.by_rank.at(direction.next_rank());
}

void RequestQueue::count_start(const ActiveRequestPtr& request) {
  Direction& direction = directions_[static_cast<std::size_t>(request->request.op)];
  if (direction.by_age.empty()) return;
  direction.overtakes =
      direction.by_age.begin()->first == request->sequence ? 0 : direction.overtakes + 1;
}

void RequestQueue::erase(const ActiveRequestPtr& request) {
  Direction& direction = directions_[static_cast<std::size_t>(request->request.op)];
  const auto oldest = direction.by_age.begin();
  if (oldest == direction.by_age.end()) return;
  if (oldest->first == request->sequence) direction.overtakes = 0;
  direction.by_age.erase(request->sequence);
  direction.by_rank.erase(Rank{request->request.needed_by, request->sequence});
}

}  // namespace sluice
