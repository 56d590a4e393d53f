// The chain of instructions that a simulated step waits for, from its end back to its start. The
// lane with the largest share of it bounds the step: a faster lane of any other kind would not help
// as much.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// The resources of a step. Both storage lanes are one.
enum class Resource : std::uint8_t { kCompute, kH2D, kD2H, kComm, kStorage, kOptimizer };
inline constexpr std::size_t kResourceCount = 6;
std::string_view resource_name(Resource resource);  // "compute"
Resource resource_of(schedule::Lane lane);

struct CriticalPath {
  // Seconds of the path that each resource works. Their sum is the step's duration.
  std::array<double, kResourceCount> seconds{};
  std::vector<schedule::InstructionId> instructions;  // the last first

  double total_s() const;
  Resource longest() const;
  double share(Resource resource) const;  // of total_s(); 0 for an empty path
};

// times: of the schedule's simulation (simulate.hpp), one for each instruction. In the list of a world
// the path goes from rank to rank; in that of one of its ranks, waits for others count as `comm`. Of
// several instructions that an instruction waited for, the one that ended last is on the path.
CriticalPath critical_path(const schedule::Schedule& schedule,
                           const std::vector<schedule::InstructionTimes>& times);

}  // namespace sluice::planner
