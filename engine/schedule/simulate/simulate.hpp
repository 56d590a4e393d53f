// How long a schedule takes on a described machine, and what happens when: an event-driven
// simulation with fluid sharing. Runs the very schedule that the executor runs.
//
// An instruction runs from when its lane and deps let it; `cost_s` is its time alone on the
// machine. While several run, each progresses at the rate that the shared resources of its rank
// leave it: cores in proportion to demand, and the storage device's bandwidth, of which a transfer
// alone (it waits for most of its time) takes only a share. A message arrives when its send has
// ended; its receive then takes its own cost. Collectives run from when all members have reached
// them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/trace.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct SimulationModel {
  // Cores of each rank's machine, and how many an instruction of a lane keeps busy when alone (on
  // the host backend compute, copies and optimizer share cores; a GPU's lanes use none). 0 cores:
  // no limit.
  double cores = 0.0;
  std::array<double, kLaneCount> cores_used{};
  // What many transfers of a lane reach together; 0: a single one takes all there is.
  double storage_read_bytes_per_s = 0.0;
  double storage_write_bytes_per_s = 0.0;
  // What each further transfer under way, of either lane, adds to the rate of one alone: the device
  // and its driver are shared, also where its bandwidth is not.
  double storage_overlap = 1.0;
  // Reading and writing at once: sum of the two lanes' rates, each relative to its rate alone. 1:
  // they share one pipe; 2: full duplex.
  double storage_duplex = 2.0;
  std::uint32_t storage_depth = 8;  // instructions in flight of a storage lane
};

struct Simulation {
  double total_s = 0.0;
  // Time of rank's lane with an instruction running; [rank][lane].
  std::vector<std::array<double, kLaneCount>> busy_s;
  // Of the rank that waits most: total_s less the time its compute lane was busy.
  double compute_stall_s = 0.0;
  // Most bytes of live buffers at once, of the fullest rank. At most peak_bytes, which adds what
  // packing, slots and pages round up to.
  std::array<std::uint64_t, kTierCount> live_peak_bytes{};
};

// `trace`: spans on tracks named as lanes (with several ranks "rank3/compute"), counters
// "device/weight" … in bytes of live buffers; times from 0. May be null.
// Throws InternalError where the schedule deadlocks (validate refuses such).
Simulation simulate(const Schedule& schedule, const SimulationModel& model,
                    TraceRecorder* trace = nullptr, std::uint32_t step = 0);

}  // namespace sluice::schedule
