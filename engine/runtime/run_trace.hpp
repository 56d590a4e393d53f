// The trace of one pass through a schedule: a span for each instruction, and memory over time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/trace.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::runtime {

class RunTrace {
 public:
  // recorder: null when the pass is not traced; then only wanted() may be called. schedule and
  // recorder must outlive this.
  RunTrace(const schedule::Schedule& schedule, TraceRecorder* recorder, std::uint32_t step);

  bool wanted() const { return recorder_ != nullptr; }
  // Once for each instruction that takes time. Threads may call it at once for different ones.
  void record_span(const schedule::Instruction& instruction, std::int64_t begin_ns,
                   std::int64_t end_ns);
  // After the pass: counters of the bytes in use, tier by tier and category by category.
  void record_memory();
  // After the pass: begin and end of each instruction, in device nanoseconds, by id.
  const std::vector<std::pair<std::int64_t, std::int64_t>>& times() const { return times_; }

 private:
  // A buffer's life begins or ends with an instruction.
  struct Moment {
    std::int64_t time_ns;
    const schedule::Instruction* instruction;
    bool ends;
  };
  std::vector<Moment> find_moments() const;

  const schedule::Schedule& schedule_;
  TraceRecorder* recorder_;
  std::uint32_t step_;
  std::vector<std::pair<std::int64_t, std::int64_t>> times_;
};

}  // namespace sluice::runtime
