// A few lines per hand-built schedule: buffers and instructions with whole-buffer uses.
#pragma once

#include <initializer_list>
#include <utility>

#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::testing {

class ScheduleSketch {
 public:
  schedule::Schedule schedule;

  ScheduleSketch() { schedule.slot_bytes = 65536; }

  schedule::BufferId buffer(schedule::BufferRole role, Tier tier, std::uint64_t bytes,
                            std::int32_t unit = 0, std::int32_t microbatch = 0) {
    schedule::Buffer made;
    made.role = role;
    made.tier = tier;
    made.bytes = bytes;
    made.unit = unit;
    made.microbatch = microbatch;
    return add(made);
  }
  schedule::BufferId state(StateKind kind, Tier tier, std::uint64_t first_elem, std::uint64_t elems,
                           std::int32_t unit = 0) {
    schedule::Buffer made;
    made.kind = kind;
    made.tier = tier;
    made.dtype = DType::kF32;
    made.category = Category::kWeight;
    made.first_elem = first_elem;
    made.elems = elems;
    made.bytes = elems * 4;
    made.unit = unit;
    return add(made);
  }
  // A persistent state buffer that holds version 0 at entry, and `exit_version` at exit.
  schedule::BufferId home(StateKind kind, Tier tier, std::uint64_t elems, std::int32_t exit_version,
                          std::int32_t unit = 0) {
    const schedule::BufferId id = state(kind, tier, 0, elems, unit);
    schedule.buffers[id].persistent = true;
    schedule.entry.push_back({kind, unit, -1, id, 0});
    schedule.exit.push_back({kind, unit, -1, id, exit_version});
    return id;
  }
  schedule::Instruction& emit(schedule::Op op, schedule::Lane lane,
                              std::initializer_list<schedule::Use> reads,
                              std::initializer_list<schedule::Use> writes) {
    schedule::Instruction made;
    made.op = op;
    made.lane = lane;
    made.unit = 0;
    made.layer = 0;
    made.microbatch = op == schedule::Op::kOptimizerStep || op == schedule::Op::kGradNorm ? -1 : 0;
    made.reads = reads;
    made.writes = writes;
    made.cost_s = 1.0;
    schedule.instructions.push_back(std::move(made));
    return schedule.instructions.back();
  }
  void release(schedule::Lane lane, schedule::BufferId id) {
    emit(schedule::Op::kRelease, lane, {{id, 0, 0}}, {}).cost_s = 0;
  }

  schedule::Schedule compiled() {
    schedule::link(schedule);
    schedule::pack(schedule);
    return schedule;
  }

 private:
  schedule::BufferId add(schedule::Buffer made) {
    made.id = static_cast<schedule::BufferId>(schedule.buffers.size());
    schedule.buffers.push_back(made);
    return made.id;
  }
};

// All of a buffer.
inline schedule::Use all(schedule::BufferId id) {
  return {id, 0, 0};
}

// A Gather of equal parts of `bytes`, of group 0: the rank's own from another buffer.
inline schedule::Instruction& add_gather(ScheduleSketch& sketch, std::int32_t rank,
                                         std::int32_t ranks, schedule::BufferId from,
                                         schedule::BufferId to, std::uint64_t bytes) {
  schedule::Instruction& gather =
      sketch.emit(schedule::Op::kGather, schedule::Lane::kComm, {all(from)}, {});
  gather.rank = rank;
  gather.group = 0;
  gather.bytes = static_cast<std::uint64_t>(ranks - 1) * bytes;
  for (std::int32_t source = 0; source < ranks; ++source) {
    gather.writes.push_back({to, static_cast<std::uint64_t>(source) * bytes, bytes, source});
  }
  return gather;
}

// Two pieces written to one home, each released after its write: instructions 2 to 5, all in the
// lane of storage writes.
inline ScheduleSketch two_writes_of_one_home() {
  ScheduleSketch sketch;
  const schedule::BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, 64, 0);
  const schedule::BufferId first = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 64);
  const schedule::BufferId second = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 64);
  sketch.emit(schedule::Op::kForward, schedule::Lane::kCompute, {}, {all(first)});
  sketch.emit(schedule::Op::kForward, schedule::Lane::kCompute, {}, {all(second)});
  for (const schedule::BufferId piece : {first, second}) {
    sketch.emit(schedule::Op::kStorageWrite, schedule::Lane::kStorageWrite, {all(piece)},
                {all(home)});
    sketch.release(schedule::Lane::kStorageWrite, piece);
  }
  return sketch;
}

}  // namespace sluice::testing
