// Seconds per instruction, alone on the machine, from the hardware profile; the simulator then lets
// instructions share cores and links.
#pragma once

#include "engine/model/model.hpp"
#include "engine/planner/hardware_profile.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate.hpp"
#include "engine/train/config.hpp"

namespace sluice {

class CostModel {
 public:
  // All arguments must outlive it.
  CostModel(const Config& config, const Model& model, const BatchShape& batch,
            const HardwareProfile& hardware)
      : config_(config), model_(model), batch_(batch), hardware_(hardware) {}

  // Sets cost_s of every instruction.
  void apply(Schedule& schedule) const;
  SimulationModel simulation_model() const;

 private:
  double pass_s(std::int32_t unit, Pass pass) const;
  double copy_s(std::uint64_t bytes) const;
  double instruction_s(const Schedule& schedule, const Instruction& instruction) const;

  const Config& config_;
  const Model& model_;
  const BatchShape& batch_;
  const HardwareProfile& hardware_;
};

}  // namespace sluice
