// The work of a step, for amounts that are numbers.
#include "engine/planner/bound/step_work.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::planner {
namespace {

// The seconds by phase: compute, upload, download, optimizer, read, write, comm.
std::vector<std::vector<double>> seconds_of(const StepWork<double>& work) {
  std::vector<std::vector<double>> seconds;
  for (const PhaseWork<double>& phase : work) {
    std::vector<double>& lanes = seconds.emplace_back();
    for (double PhaseWork<double>::*const lane : PhaseWork<double>::lanes()) {
      lanes.push_back(phase.*lane);
    }
  }
  return seconds;
}

StepRates rates() {
  StepRates rates;
  rates.copy_s = 2;
  rates.storage_read_s = 3;
  rates.storage_write_s = 5;
  return rates;
}

TEST(StepWork, ValuesThatWaitMoveDownInForwardAndUpInBackward) {
  using Seconds = std::vector<std::vector<double>>;
  StepWork<double> work;
  EXPECT_EQ(seconds_of(work), Seconds(kPhaseCount, std::vector<double>(7)));
  work.keep(1000, Tier::kDevice, rates());
  EXPECT_EQ(seconds_of(work), Seconds(kPhaseCount, std::vector<double>(7)));
  work.keep(10, Tier::kPinned, rates());
  EXPECT_EQ(seconds_of(work),
            (Seconds{{0, 0, 20, 0, 0, 0, 0}, {0, 20, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0}}));
  work.keep(100, Tier::kStorage, rates());
  EXPECT_EQ(seconds_of(work),
            (Seconds{{0, 0, 220, 0, 0, 500, 0}, {0, 220, 0, 0, 300, 0, 0}, {0, 0, 0, 0, 0, 0, 0}}));
}

TEST(StepWork, AddsEveryLane) {
  PhaseWork<double> work{1, 2, 3, 4, 5, 6, 7};
  work += {10, 20, 30, 40, 50, 60, 70};
  EXPECT_EQ(seconds_of({work, {}, {}}).front(), (std::vector<double>{11, 22, 33, 44, 55, 66, 77}));
}

TEST(StepWork, CountsTheCoresOfEachLane) {
  schedule::SimulationModel machine;
  const auto use = [&](schedule::Lane lane, double cores) {
    machine.cores_used[static_cast<std::size_t>(lane)] = cores;
  };
  use(schedule::Lane::kCompute, 1);
  use(schedule::Lane::kH2D, 10);
  use(schedule::Lane::kD2H, 100);
  use(schedule::Lane::kOptimizer, 1000);
  use(schedule::Lane::kComm, 10000);
  const PhaseWork<double> work{1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(work.core_seconds(machine), 74321);
}

}  // namespace
}  // namespace sluice::planner
