// The compute order in the CSV that torch's pipelining reads
// (torch/distributed/pipelining/schedules.py, _Action.from_str): F forward, I backward of the
// input, W backward of the weights.
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {
namespace {

// 0 for ops without a cell in the format. It has none for recomputation, which is part of backward.
char action_of(Op op) {
  switch (op) {
    case Op::kForward:
    case Op::kLoss:
      return 'F';
    case Op::kBackwardInput:
      return 'I';
    case Op::kBackwardWeight:
      return 'W';
    default:
      return 0;
  }
}

}  // namespace

std::string schedule_to_csv(const Schedule& schedule) {
  std::vector<std::string> rows(static_cast<std::size_t>(schedule.ranks));
  std::vector<std::string> last(rows.size());
  for (const Instruction& instruction : schedule.instructions) {
    const char action = action_of(instruction.op);
    if (action == 0 || instruction.unit < 0 || instruction.microbatch < 0) continue;
    const auto rank = static_cast<std::size_t>(instruction.rank);
    const std::string cell =
        std::to_string(instruction.unit) + action + std::to_string(instruction.microbatch);
    // A unit with an instruction for each layer is one action.
    if (cell == last[rank]) continue;
    if (!rows[rank].empty()) rows[rank] += ',';
    rows[rank] += cell;
    last[rank] = cell;
  }
  std::string csv;
  for (const std::string& row : rows) csv += row + "\n";
  return csv;
}

}  // namespace sluice::schedule
