// Prices every instruction in seconds, as if it ran alone on the machine, from the hardware
// profile. The simulator then lets instructions share cores and links.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "engine/config/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "engine/planner/price/priced_kernels.hpp"
#include "engine/schedule/compile/recompute.hpp"
#include "engine/schedule/pass_segments.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// Seconds of a step's work where each kind of it runs best: in large pieces, with no start but that
// of a pass.
struct StepRates {
  // Of all units, for one micro-batch.
  double forward_s = 0;  // with the loss
  double backward_s = 0;
  // Per byte.
  double copy_s = 0;  // between pinned memory and the device, one way
  double storage_read_s = 0;
  double storage_write_s = 0;
  double comm_s = 0;  // between ranks, in the busier direction
  // Of all parameters: on the host's optimizer lane and on the device.
  struct StateWork {
    double accumulate_s = 0;  // one micro-batch's gradient
    double norm_s = 0;
    double update_s = 0;
  };
  StateWork host;
  StateWork device;
};

class CostModel {
 public:
  // All arguments must outlive it. config.train.threads = 0 stands for the profile's cores. For
  // memory.backend = "cuda" the device's figures are hardware.gpu, or those of a small GPU.
  // The ranks of config.parallel share the cores and the storage of a node, and the links between them.
  CostModel(const config::Config& config, const model::Model& model, const model::BatchShape& batch,
            const HardwareProfile& hardware);

  const RankLinks& links() const { return world_.links; }
  StepRates rates();
  // The passes of one micro-batch through the unit, with the waits for other ranks of a tensor group
  // between their segments; the embedding makes no gradient of its input.
  struct UnitPasses {
    double forward_s = 0, backward_input_s = 0, backward_weight_s = 0;
    double all_s() const { return forward_s + backward_input_s + backward_weight_s; }
  };
  UnitPasses unit_passes(std::int32_t unit);
  double unit_s(std::int32_t unit) { return unit_passes(unit).all_s(); }
  // Of one micro-batch.
  double recompute_s(const schedule::Recomputation& recompute);
  // For one micro-batch and unit; includes the output if all parts are made.
  double remake_s(std::int32_t unit, schedule::PartMask parts, bool makes_output) {
    return pass_s(unit, schedule::Op::kRecompute, parts, makes_output);
  }

  // Sets cost_s of every instruction.
  void apply(schedule::Schedule& schedule);
  schedule::SimulationModel simulation_model() const;

 private:
  double pass_s(const schedule::Schedule& schedule, const schedule::Instruction& pass);
  double pass_s(std::int32_t unit, schedule::Op pass, schedule::PartMask remade, bool makes_output,
                const schedule::SegmentRange& segments = {});
  StepRates::StateWork state_work(PricedKernels& kernels);
  static void price_copies(PricedKernels& kernels, const schedule::Schedule& schedule,
                           const schedule::Instruction& instruction);
  double state_operation_s(const schedule::Schedule& schedule,
                           const schedule::Instruction& instruction);
  bool on_gpu() const { return config_.memory.backend == config::Config::Backend::kCuda; }
  // The processor that does the work of a lane.
  const HardwareProfile& hardware_of(schedule::Lane lane) const;
  PricedKernels& kernels_of(schedule::Lane lane);
  double memcpy_s(schedule::Lane lane, std::uint64_t bytes) const;
  double link_s(std::uint64_t bytes) const;
  double copy_s(schedule::Lane lane, std::uint64_t bytes) const;
  double transfer_s(TimedOperation operation, std::uint64_t bytes) const;
  double waits_between_segments_s(const schedule::PassSegments& segments) const;
  // A sum between `ranks` ranks of a tensor group, of which each sends so many bytes.
  double inner_s(std::int32_t ranks, double bytes) const;
  double collective_s(const schedule::Schedule& schedule,
                      const schedule::Instruction& instruction) const;
  double instruction_s(const schedule::Schedule& schedule,
                       const schedule::Instruction& instruction);
  double overhead_s(const schedule::Schedule& schedule,
                    const schedule::Instruction& instruction) const;
  double least_overhead_s() const;

  const config::Config& config_;
  const model::Model& model_;
  const model::BatchShape& batch_;
  const HardwareProfile& hardware_;  // the host's
  HardwareProfile device_;           // the host's again if the device is the host
  // The ranks that plans are for.
  struct World {
    RankLinks links;
    std::int32_t ranks = 1;
    double of_node = 1;  // ranks that share this machine
  };
  World world_;
  int threads_;  // of one rank
  model::ParameterTable table_;
  PricedKernels kernels_;  // the device's
  PricedKernels host_kernels_;
  // Cache, by unit, pass, the parts that a Recompute makes, and whether there is an output.
  std::map<
      std::tuple<std::int32_t, schedule::Op, schedule::PartMask, bool, std::int32_t, std::int32_t>,
      double>
      pass_s_;
};

}  // namespace sluice::planner
