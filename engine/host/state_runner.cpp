#include "engine/host/state_runner.hpp"

#include <cmath>
#include <string>

#include "base/error.hpp"

namespace sluice::host {

void StateRunner::run_on_device(const runtime::Program&, const schedule::Instruction& instruction,
                                device::Stream&) {
  throw InternalError("a host's update has an instruction for the device: " +
                      std::string(schedule::op_name(instruction.op)));
}

void StateRunner::run_on_host(const runtime::Program& program,
                              const schedule::Instruction& instruction,
                              const kernels::HostUpdate& how) {
  if (instruction.op == schedule::Op::kOptimizerStep) {
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (table_.options(unit).rule == kernels::OptimizerRule::kCaller) {
      return hand_over(program, instruction, how);
    }
  }
  operations_.run(kernels_, program, instruction, how);
}

// The unit is one piece. Tags of state from storage are checked before the program sees it, and
// made after its update.
void StateRunner::hand_over(const runtime::Program& program,
                            const schedule::Instruction& instruction,
                            const kernels::HostUpdate& how) {
  SLUICE_CHECK(exchange_ != nullptr);
  const auto elems = static_cast<std::int64_t>(
      space_.space().layout(static_cast<std::size_t>(instruction.unit)).elems());
  if (how.guard != nullptr) how.guard->before(0, elems);
  const runtime::Place* scalar =
      runtime::find_place(program.reads(instruction.id), schedule::BufferRole::kScalar);
  SLUICE_CHECK(scalar != nullptr);
  const auto* const clip = reinterpret_cast<const double*>(scalar->data);
  if (std::isfinite(clip[0])) exchange_->offer(parts_of(program, instruction, clip[1]));
  if (how.guard != nullptr) how.guard->after(0, elems);
}

std::vector<CallerPart> StateRunner::parts_of(const runtime::Program& program,
                                              const schedule::Instruction& instruction,
                                              double factor) const {
  const auto& reads = program.reads(instruction.id);
  const auto& writes = program.writes(instruction.id);
  const auto at = [&](const std::vector<runtime::Place>& places, StateKind kind,
                      std::uint64_t first_elem) -> std::byte* {
    const runtime::Place* place = runtime::find_state(places, kind, instruction.unit);
    return place == nullptr ? nullptr : place->data + bytes_of(place->buffer->dtype, first_elem);
  };
  std::vector<CallerPart> parts;
  const std::vector<SessionParameter>& all = space_.parameters();
  for (std::uint32_t number = 0; number < all.size(); ++number) {
    if (all[number].unit != instruction.unit) continue;
    const std::uint64_t first = all[number].first_elem;
    parts.push_back(
        {number,
         at(writes, StateKind::kWeight, first),
         at(reads, StateKind::kGradient, first),
         {at(writes, StateKind::kMoment1, first), at(writes, StateKind::kMoment2, first)},
         factor});
  }
  return parts;
}

}  // namespace sluice::host
