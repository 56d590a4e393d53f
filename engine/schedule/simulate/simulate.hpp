// The duration and timeline of a schedule on a described machine: an event-driven simulation with
// fluid sharing. It runs the very schedule that the executor runs.
//
// An instruction starts as soon as its lane and deps allow it; `cost_s` is its time alone on the
// machine. While several run, each progresses at the rate that the shared resources of its rank
// allow. Cores are shared in proportion to demand. The storage device's bandwidth is shared too; a
// transfer alone takes only a part of it, since it waits most of its time. A message arrives when
// its send has ended, and its receive then takes its own cost. A collective starts when all members
// have reached it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/trace.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct SimulationModel {
  // Cores of each rank's machine, and the number that an instruction of a lane keeps busy when
  // alone. On the host backend compute, copies and optimizer share cores; a GPU's lanes use none.
  // 0 cores: no limit.
  double cores = 0.0;
  std::array<double, kLaneCount> cores_used{};
  // The bandwidth that many transfers of a lane reach together; 0: a single one takes all of it.
  double storage_read_bytes_per_s = 0.0;
  double storage_write_bytes_per_s = 0.0;
  // The rate that each further transfer in flight, of either lane, adds relative to one alone. The
  // device and its driver are shared even while bandwidth is left.
  double storage_overlap = 1.0;
  // Reading and writing at once: the sum of the two lanes' rates, each relative to its rate alone.
  // 1: they share one pipe; 2: full duplex.
  double storage_duplex = 2.0;
  std::uint32_t storage_depth = 8;  // instructions in flight of a storage lane
};

struct Simulation {
  double total_s = 0.0;
  // Time with an instruction running; [rank][lane].
  std::vector<std::array<double, kLaneCount>> busy_s;
  // total_s less the busy time of the compute lane, for the rank that waits most.
  double compute_stall_s = 0.0;
  // The most bytes of live buffers at once, of the fullest rank. At most peak_bytes, which also
  // counts the rounding of packing, slots and pages.
  std::array<std::uint64_t, kTierCount> live_peak_bytes{};
};

// The times of one instruction of a simulated schedule.
struct InstructionTimes {
  double begin_s = 0.0;
  double end_s = -1.0;      // of its work; below 0: it has not ended
  double retired_s = -1.0;  // it counts as done for deps; after end_s only in a storage lane
};

// `trace`: spans on tracks named as lanes (with several ranks "rank3/compute"), counters
// "device/weight" … in bytes of live buffers; times from 0. May be null.
// `times`, if not null, is set to those of all instructions, by id.
// Throws InternalError if the schedule deadlocks; validate refuses such schedules.
Simulation simulate(const Schedule& schedule, const SimulationModel& model,
                    TraceRecorder* trace = nullptr, std::uint32_t step = 0,
                    std::vector<InstructionTimes>* times = nullptr);

// The time that the busiest lane works, or the storage device: total_s is never less, in whatever
// order the instructions come. Precondition: the schedule of one rank.
double busiest_lane_s(const Schedule& schedule, const SimulationModel& model);

}  // namespace sluice::schedule
