// Memory over time is derived after the pass, from the measured times of its instructions: an
// instruction occupies the buffers that it writes from its begin on, and a Release frees a buffer
// at the end of the last instruction that used it. Measuring it during the pass would cost each
// lane a lock for each buffer.
#include "engine/runtime/run_trace.hpp"

#include <algorithm>

#include "engine/schedule/simulate/memory_timeline.hpp"

namespace sluice::runtime {

RunTrace::RunTrace(const schedule::Schedule& schedule, TraceRecorder* recorder, std::uint32_t step)
    : schedule_(schedule), recorder_(recorder), step_(step) {
  if (wanted()) times_.resize(schedule.instructions.size());
}

void RunTrace::record_span(const schedule::Instruction& instruction, std::int64_t begin_ns,
                           std::int64_t end_ns) {
  TraceSpan span{};
  span.track = recorder_->intern(schedule::lane_name(instruction.lane));
  span.name = recorder_->intern(schedule::op_name(instruction.op));
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.unit = instruction.unit;
  span.microbatch = instruction.microbatch;
  span.bytes = instruction.bytes;
  span.step = step_;
  recorder_->span(span);
  times_[instruction.id] = {begin_ns, end_ns};
}

std::vector<RunTrace::Moment> RunTrace::find_moments() const {
  std::vector<std::int64_t> last_use_ns(schedule_.buffers.size(), 0);
  std::vector<Moment> moments;
  for (const schedule::Instruction& instruction : schedule_.instructions) {
    if (instruction.op == schedule::Op::kRelease) {
      std::int64_t time_ns = 0;
      for (const schedule::Use& use : instruction.reads) {
        time_ns = std::max(time_ns, last_use_ns[use.buffer]);
      }
      moments.push_back({time_ns, &instruction, true});
      continue;
    }
    const auto [begin_ns, end_ns] = times_[instruction.id];
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        last_use_ns[use.buffer] = std::max(last_use_ns[use.buffer], end_ns);
      }
    }
    moments.push_back({begin_ns, &instruction, false});
  }
  std::stable_sort(moments.begin(), moments.end(),
                   [](const Moment& a, const Moment& b) { return a.time_ns < b.time_ns; });
  return moments;
}

void RunTrace::record_memory() {
  const std::vector<Moment> moments = find_moments();
  if (moments.empty()) return;
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  schedule::MemoryTimeline memory(schedule_, recorder_, seconds(moments.front().time_ns));
  for (const Moment& moment : moments) {
    if (moment.ends) {
      memory.end(*moment.instruction, seconds(moment.time_ns));
    } else {
      memory.start(*moment.instruction, seconds(moment.time_ns));
    }
  }
}

}  // namespace sluice::runtime
