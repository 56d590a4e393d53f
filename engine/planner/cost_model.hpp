// Prices every instruction in seconds, as if it ran alone on the machine, from the hardware
// profile. The simulator then lets instructions share cores and links.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "engine/config/config.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/planner/hardware_profile.hpp"
#include "engine/planner/priced_kernels.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

class CostModel {
 public:
  // All arguments must outlive it. config.train.threads = 0 stands for the profile's cores. For
  // memory.backend = "cuda" the device's figures are hardware.gpu, or those of a small GPU.
  CostModel(const config::Config& config, const model::Model& model, const model::BatchShape& batch,
            const HardwareProfile& hardware);

  // Sets cost_s of every instruction.
  void apply(schedule::Schedule& schedule);
  schedule::SimulationModel simulation_model() const;

 private:
  double pass_s(const schedule::Schedule& schedule, const schedule::Instruction& pass);
  static void price_copies(PricedKernels& kernels, const schedule::Schedule& schedule,
                           const schedule::Instruction& instruction);
  double state_operation_s(const schedule::Schedule& schedule,
                           const schedule::Instruction& instruction);
  bool on_gpu() const { return config_.memory.backend == config::Config::Backend::kCuda; }
  // The processor that does the work of a lane.
  const HardwareProfile& hardware_of(schedule::Lane lane) const;
  PricedKernels& kernels_of(schedule::Lane lane);
  double memcpy_s(std::uint64_t bytes) const;
  double link_s(std::uint64_t bytes) const;
  double copy_s(std::uint64_t bytes) const;
  double transfer_s(TimedOperation operation, std::uint64_t bytes) const;
  double instruction_s(const schedule::Schedule& schedule,
                       const schedule::Instruction& instruction);
  double overhead_s(const schedule::Schedule& schedule,
                    const schedule::Instruction& instruction) const;

  const config::Config& config_;
  const model::Model& model_;
  const model::BatchShape& batch_;
  const HardwareProfile& hardware_;  // the host's
  HardwareProfile device_;           // the host's again if the device is the host
  int threads_;
  model::ParameterTable table_;
  PricedKernels kernels_;  // the device's
  PricedKernels host_kernels_;
  // Cache, by unit, pass, the parts that a Recompute makes, and whether there is an output.
  std::map<std::tuple<std::int32_t, schedule::Op, schedule::PartMask, bool>, double> pass_s_;
};

}  // namespace sluice::planner
