// The walk goes backwards in time. It starts at the beginning of a late pass on the compute lane
// and asks for the instruction with the end that let the pass begin. The time while that
// instruction ran counts for its lane. The walk then goes on from the beginning of that
// instruction, until it reaches the end of the compute lane's previous pass. A gap between an end
// and the begin that followed is a hand-over between threads. Every moment is counted once, so the
// causes add up to the idle time.
#include "engine/runtime/stall_causes.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace sluice::runtime {
namespace {

StallCause cause_of(schedule::Lane lane) {
  switch (lane) {
    case schedule::Lane::kH2D:
      return StallCause::kUpload;
    case schedule::Lane::kD2H:
      return StallCause::kDownload;
    case schedule::Lane::kStorageRead:
      return StallCause::kStorageRead;
    case schedule::Lane::kStorageWrite:
      return StallCause::kStorageWrite;
    case schedule::Lane::kOptimizer:
      return StallCause::kOptimizer;
    case schedule::Lane::kComm:
    case schedule::Lane::kInner:
    case schedule::Lane::kSend:
    case schedule::Lane::kReceive:
      return StallCause::kComm;
    case schedule::Lane::kCompute:
      break;
  }
  return StallCause::kHandOver;
}

class PassAnalysis {
 public:
  using Times = std::vector<std::pair<std::int64_t, std::int64_t>>;

  PassAnalysis(const schedule::Schedule& schedule, const Times& times)
      : schedule_(schedule), times_(times) {
    const std::size_t count = schedule.instructions.size();
    before_.assign(count, schedule::kNoId);
    ended_by_.assign(count, schedule::kNoId);
    first_.assign(count, false);
    std::array<bool, schedule::kLaneCount> begun{};
    std::array<schedule::InstructionId, schedule::kLaneCount> last{};
    last.fill(schedule::kNoId);
    for (const schedule::Instruction& instruction : schedule.instructions) {
      schedule::InstructionId& of_lane = last[static_cast<std::size_t>(instruction.lane)];
      before_[instruction.id] = latest_before(instruction, of_lane);
      ended_by_[instruction.id] = latest_until(instruction, of_lane);
      of_lane = instruction.id;
      if (instruction.op == schedule::Op::kRelease) continue;
      bool& lane_begun = begun[static_cast<std::size_t>(instruction.lane)];
      first_[instruction.id] = !std::exchange(lane_begun, true);
    }
  }

  Stalls analyse(std::int64_t begin_ns, std::int64_t end_ns) {
    std::int64_t idle_since = begin_ns;
    schedule::InstructionId last_ended = schedule::kNoId;
    for (const schedule::Instruction& instruction : schedule_.instructions) {
      if (instruction.op == schedule::Op::kRelease) continue;
      const auto [begin, end] = times_[instruction.id];
      if (last_ended == schedule::kNoId || end > times_[last_ended].second)
        last_ended = instruction.id;
      if (instruction.lane != schedule::Lane::kCompute) continue;
      attribute(idle_since, begin, before_[instruction.id]);
      stalls_.compute_s += seconds(std::max(idle_since, begin), end);
      idle_since = std::max(idle_since, end);
    }
    attribute(idle_since, end_ns, last_ended);
    return stalls_;
  }

 private:
  static double seconds(std::int64_t begin_ns, std::int64_t end_ns) {
    return static_cast<double>(std::max<std::int64_t>(end_ns - begin_ns, 0)) * 1e-9;
  }
  void add(StallCause cause, std::int64_t begin_ns, std::int64_t end_ns) {
    stalls_.by_cause_s[static_cast<std::size_t>(cause)] += seconds(begin_ns, end_ns);
  }

  // The later end of two instructions; kNoId is none.
  schedule::InstructionId later(schedule::InstructionId a, schedule::InstructionId b) const {
    if (a == schedule::kNoId || b == schedule::kNoId) return a == schedule::kNoId ? b : a;
    return times_[a].second > times_[b].second ? a : b;
  }

  // The instruction with the end that makes this one done for others. A lane finishes in its order:
  // a Release takes no time and follows the instructions before it, and so does an overtaking
  // transfer.
  schedule::InstructionId latest_until(const schedule::Instruction& instruction,
                                       schedule::InstructionId earlier_in_lane) const {
    const bool release = instruction.op == schedule::Op::kRelease;
    schedule::InstructionId latest = release ? schedule::kNoId : instruction.id;
    if (earlier_in_lane != schedule::kNoId &&
        (release || schedule::lane_is_pipelined(instruction.lane))) {
      latest = later(latest, ended_by_[earlier_in_lane]);
    }
    if (!release) return latest;
    for (const schedule::InstructionId dep : instruction.deps)
      latest = later(latest, ended_by_[dep]);
    return latest;
  }

  // The instruction with the end that let this one begin; kNoId if it waited for nothing. A
  // pipelined lane goes on while its earlier transfers run, but not before all that these waited
  // for.
  schedule::InstructionId latest_before(const schedule::Instruction& instruction,
                                        schedule::InstructionId earlier_in_lane) const {
    const bool pipelined = schedule::lane_is_pipelined(instruction.lane);
    schedule::InstructionId latest = schedule::kNoId;
    if (earlier_in_lane != schedule::kNoId) {
      latest = pipelined ? before_[earlier_in_lane] : ended_by_[earlier_in_lane];
    }
    for (const schedule::InstructionId dep : instruction.deps) {
      if (schedule::retires_behind(schedule_.instructions[dep], instruction)) continue;
      latest = later(latest, ended_by_[dep]);
    }
    return latest;
  }

  // The idle time [from, to), which ended when `awaited` had.
  void attribute(std::int64_t from, std::int64_t to, schedule::InstructionId awaited) {
    bool first_of_lane = false;
    while (to > from && awaited != schedule::kNoId) {
      const auto [begin, end] = times_[awaited];
      first_of_lane = first_[awaited];
      const schedule::Lane lane = schedule_.instructions[awaited].lane;
      if (end < to) {
        add(StallCause::kHandOver, std::max(end, from), to);
        to = std::max(end, from);
      }
      if (begin < to) {
        add(cause_of(lane), std::max(begin, from), to);
        to = std::max(begin, from);
      }
      awaited = before_[awaited];
    }
    // A lane's first instruction waited for nothing but its thread, which the pass woke.
    if (to > from) add(first_of_lane ? StallCause::kHandOver : StallCause::kUnexplained, from, to);
  }

  const schedule::Schedule& schedule_;
  const Times& times_;
  std::vector<schedule::InstructionId> before_;  // by instruction: the one that it waited for
  std::vector<bool> first_;  // by instruction: of its lane, Releases not counted
  std::vector<schedule::InstructionId>
      ended_by_;  // and the one that made it done: itself, or the one before it
  Stalls stalls_;
};

}  // namespace

std::string_view stall_cause_name(StallCause cause) {
  constexpr std::array<std::string_view, kStallCauseCount> kNames{
      "upload", "download",  "storage_read", "storage_write", "optimizer",
      "comm",   "hand_over", "update_pass",  "unexplained"};
  return kNames[static_cast<std::size_t>(cause)];
}

double Stalls::total_s() const {
  return std::accumulate(by_cause_s.begin(), by_cause_s.end(), 0.0);
}

Stalls stalls_of_pass(const schedule::Schedule& schedule,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& times,
                      std::int64_t begin_ns, std::int64_t end_ns) {
  SLUICE_CHECK(times.size() == schedule.instructions.size());
  return PassAnalysis(schedule, times).analyse(begin_ns, end_ns);
}

}  // namespace sluice::runtime
