// Sums of live bytes per rank, tier and category, changed at births and Releases; each change
// writes one sample of the trace's counter.
#include "engine/schedule/simulate/memory_timeline.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace sluice::schedule {

std::int64_t trace_ns(double time_s) {
  return std::llround(time_s * 1e9);
}

MemoryTimeline::MemoryTimeline(const Schedule& schedule, TraceRecorder* trace, double begin_s)
    : schedule_(schedule),
      trace_(trace),
      live_bytes_(static_cast<std::size_t>(schedule.ranks)),
      tier_bytes_(static_cast<std::size_t>(schedule.ranks)),
      born_(schedule.buffers.size(), false) {
  for (const Buffer& buffer : schedule.buffers) {
    if (!buffer.persistent) continue;
    born_[buffer.id] = true;
    add(buffer, begin_s);
  }
}

// A window takes whole slots.
std::uint64_t MemoryTimeline::footprint_bytes(const Buffer& buffer) const {
  return buffer.window ? buffer.slots.size() * schedule_.slot_bytes : place_bytes(buffer);
}

// Only writes give birth: a buffer holds nothing before its first one.
void MemoryTimeline::start(const Instruction& instruction, double now_s) {
  if (instruction.op == Op::kRelease) return;
  for (const Use& use : instruction.writes) {
    if (born_[use.buffer]) continue;
    born_[use.buffer] = true;
    add(schedule_.buffers[use.buffer], now_s);
  }
}

void MemoryTimeline::end(const Instruction& instruction, double now_s) {
  if (instruction.op != Op::kRelease) return;
  for (const Use& use : instruction.reads) remove(schedule_.buffers[use.buffer], now_s);
  for (const Use& use : instruction.writes) remove(schedule_.buffers[use.buffer], now_s);
}

void MemoryTimeline::add(const Buffer& buffer, double now_s) {
  const auto rank = static_cast<std::size_t>(buffer.rank);
  const auto tier = static_cast<std::size_t>(buffer.tier);
  const std::uint64_t bytes = footprint_bytes(buffer);
  live_bytes_[rank][tier][static_cast<std::size_t>(buffer.category)] += bytes;
  tier_bytes_[rank][tier] += bytes;
  peak_bytes_[tier] = std::max(peak_bytes_[tier], tier_bytes_[rank][tier]);
  sample(buffer, now_s);
}

void MemoryTimeline::remove(const Buffer& buffer, double now_s) {
  const auto rank = static_cast<std::size_t>(buffer.rank);
  const auto tier = static_cast<std::size_t>(buffer.tier);
  const std::uint64_t bytes = footprint_bytes(buffer);
  live_bytes_[rank][tier][static_cast<std::size_t>(buffer.category)] -= bytes;
  tier_bytes_[rank][tier] -= bytes;
  sample(buffer, now_s);
}

// One counter for each rank, tier and category.
void MemoryTimeline::sample(const Buffer& buffer, double now_s) {
  if (trace_ == nullptr) return;
  std::string name = schedule_.ranks == 1 ? "" : "rank" + std::to_string(buffer.rank) + "/";
  name += tier_name(buffer.tier);
  name += '/';
  name += category_name(buffer.category);
  trace_->counter(trace_->intern(name), trace_ns(now_s),
                  static_cast<double>(
                      live_bytes_[static_cast<std::size_t>(buffer.rank)][static_cast<std::size_t>(
                          buffer.tier)][static_cast<std::size_t>(buffer.category)]));
}

}  // namespace sluice::schedule
