// Live bytes by tier and category while a schedule runs or is simulated: the memory counters of a
// trace.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/trace.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

std::int64_t trace_ns(double time_s);

class MemoryTimeline {
 public:
  // Persistent buffers are live from begin_s on. `trace` may be null.
  MemoryTimeline(const Schedule& schedule, TraceRecorder* trace, double begin_s = 0.0);

  // A buffer is born when the first instruction that writes it starts, and dies when its Release
  // ends.
  void start(const Instruction& instruction, double now_s);
  void end(const Instruction& instruction, double now_s);

  // The peak of the fullest rank.
  std::array<std::uint64_t, kTierCount> peak_bytes() const { return peak_bytes_; }

 private:
  using Totals = std::array<std::array<std::uint64_t, kCategoryCount>, kTierCount>;
  std::uint64_t footprint_bytes(const Buffer& buffer) const;
  void add(const Buffer& buffer, double now_s);
  void remove(const Buffer& buffer, double now_s);
  void sample(const Buffer& buffer, double now_s);

  const Schedule& schedule_;
  TraceRecorder* trace_;
  std::vector<Totals> live_bytes_;  // by rank
  std::vector<std::array<std::uint64_t, kTierCount>> tier_bytes_;
  std::array<std::uint64_t, kTierCount> peak_bytes_{};
  std::vector<bool> born_;
};

}  // namespace sluice::schedule
