#include "engine/runtime/host_lane.hpp"

namespace sluice::runtime {

bool await_dependencies(RunProgress& run, const schedule::Instruction& instruction) {
  bool storage_waited_for = false;
  for (const schedule::InstructionId dep : instruction.deps) {
    const schedule::Instruction& awaited = run.program().schedule().instructions[dep];
    // The lane publishes in order, so it need not stop for an instruction that retires before.
    if (schedule::retires_behind(awaited, instruction)) continue;
    if (is_device_lane(awaited.lane)) {
      run.await(dep, Progress::kIssued, instruction);
      run.end_event(dep).synchronize(run.deadline(), describe(awaited).c_str());
    } else {
      storage_waited_for |=
          schedule::lane_is_pipelined(awaited.lane) && !run.reached(dep, Progress::kDone);
      run.await(dep, Progress::kDone, instruction);
    }
  }
  return storage_waited_for;
}

void check_host_access(device::Device& device, const Program& program,
                       const schedule::Instruction& instruction) {
  const auto check = [&device](const std::vector<Place>& places, bool writes) {
    for (const Place& place : places) {
      if (place.data != nullptr) device.check_host_access(place.data, place.bytes, writes);
    }
  };
  check(program.reads(instruction.id), false);
  check(program.writes(instruction.id), true);
}

offload::TaggedSpace::RangeId storage_range(const Program& program,
                                            const schedule::Instruction& transfer,
                                            const Place& place, const DurableState* durable) {
  if (durable == nullptr) return place.storage_ranges[0];
  return place.storage_ranges[durable->copy_of(place, program.of_made_state(transfer.id))];
}

}  // namespace sluice::runtime
