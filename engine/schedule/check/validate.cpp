// Runs the checks in order: structure, meaning, messages, places, contents.
//
// The core is HappensBefore, a vector clock for every instruction, computed here independently of
// link's. The checks of places and contents first prove that conflicting uses are ordered by it.
// Then every timing of the lanes has the same effect as list order, so the rest can be checked as
// in a sequential program.
#include "engine/schedule/check/validate.hpp"

#include <algorithm>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule {
namespace validation {

std::string describe(const Instruction& instruction) {
  std::string text =
      "instruction " + std::to_string(instruction.id) + " (" + std::string(op_name(instruction.op));
  if (instruction.rank > 0) text += ", rank " + std::to_string(instruction.rank);
  if (instruction.unit >= 0) text += ", unit " + std::to_string(instruction.unit);
  if (instruction.microbatch >= 0) {
    text += ", micro-batch " + std::to_string(instruction.microbatch);
  }
  return text + ")";
}

std::string describe(const Buffer& buffer) {
  std::string text = "buffer " + std::to_string(buffer.id) + " (";
  text += buffer.role == BufferRole::kState ? state_kind_name(buffer.kind) : role_name(buffer.role);
  if (buffer.unit >= 0) text += " of unit " + std::to_string(buffer.unit);
  return text + " in " + std::string(tier_name(buffer.tier)) + ")";
}

schedule::validation::ByteRange bytes_of(const Use& use, const Buffer& buffer) {
  if (use.bytes == 0) return {0, buffer.bytes};
  return {use.offset_bytes, use.offset_bytes + use.bytes};
}

bool is_copy(Op op) {
  return op == Op::kUpload || op == Op::kDownload || op == Op::kStorageRead ||
         op == Op::kStorageWrite || op == Op::kSpillActivation || op == Op::kFetchActivation;
}
bool is_compute(Op op) {
  return op == Op::kForward || op == Op::kRecompute || op == Op::kBackwardInput ||
         op == Op::kBackwardWeight || op == Op::kLoss || op == Op::kExternal;
}
bool is_send(Op op) {
  return op == Op::kSendForward || op == Op::kSendBackward;
}
bool is_receive(Op op) {
  return op == Op::kRecvForward || op == Op::kRecvBackward;
}
bool is_collective(Op op) {
  return op == Op::kGather || op == Op::kReduceScatter || op == Op::kAllReduce ||
         op == Op::kAllToAll;
}

// Clocks count the instructions of each lane that are done. Ranks never mix, since deps stay within
// a rank.
HappensBefore::HappensBefore(const Schedule& schedule)
    : turns_(schedule.instructions.size()), start_(schedule.instructions.size()) {
  // The state of each lane so far: its length; the knowledge of a next instruction that starts
  // while the last one runs; and the knowledge at the last one's end.
  struct LaneTail {
    std::uint32_t length = 0;
    Counts start{};
    Counts end{};
  };
  const auto merge = [](Counts& into, const Counts& from) {
    for (std::size_t k = 0; k < kLaneCount; ++k) into[k] = std::max(into[k], from[k]);
  };
  std::vector<std::array<LaneTail, kLaneCount>> tails(static_cast<std::size_t>(schedule.ranks));
  std::vector<Counts> end(schedule.instructions.size());
  for (const Instruction& instruction : schedule.instructions) {
    const auto lane = static_cast<std::size_t>(instruction.lane);
    LaneTail& tail = tails[static_cast<std::size_t>(instruction.rank)][lane];
    // A pipelined lane starts an instruction while its predecessor runs, but retires in order. It
    // does not wait for a Release that only retires after a transfer.
    Counts& start = start_[instruction.id];
    start = lane_is_pipelined(instruction.lane) ? tail.start : tail.end;
    Counts onward = start;
    for (const InstructionId dep : instruction.deps) {
      merge(start, end[dep]);
      if (!retires_behind(schedule.instructions[dep], instruction)) merge(onward, end[dep]);
    }
    turns_[instruction.id] = {++tail.length, instruction.lane};
    tail.start = onward;
    merge(tail.end, start);
    tail.end[lane] = tail.length;
    end[instruction.id] = tail.end;
  }
}

}  // namespace validation

std::vector<std::string> validate(const Schedule& schedule,
                                  const std::array<std::uint64_t, kTierCount>& budgets_bytes) {
  validation::Problems problems;
  validation::check_structure(schedule, problems);
  if (!problems.none()) return problems.take();
  validation::check_meaning(schedule, problems);
  validation::check_cuts(schedule, problems);
  if (!problems.none()) return problems.take();
  const validation::Meetings meetings(schedule, problems);
  validation::check_messages(schedule, meetings, problems);
  if (!problems.none()) return problems.take();
  const validation::HappensBefore order(schedule);
  validation::check_places(schedule, order, budgets_bytes, problems);
  validation::check_control(schedule, order, problems);
  validation::check_contents(schedule, order, meetings, problems);
  return problems.take();
}

}  // namespace sluice::schedule
