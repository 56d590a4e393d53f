// The operations on state that a schedule names: sums, norms and roundings of gradients, the clip
// factor, updates. They know the parameters and their rules, and nothing of layers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/model/parameter_table.hpp"
#include "engine/runtime/program.hpp"
#include "kernels/kernels.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::runtime {

// The numbers of one step that the schedule leaves open.
struct StepScalars {
  // By update, for those of a pass that makes several (schedule::Instruction::update). Empty:
  // `update` is the only one.
  std::vector<kernels::UpdateScalars> updates = {};
  // For the pass's own update, and for the pending one of the step before, if the pass makes one
  // (Program::of_pending_update). The clip factor sets grad_scale.
  kernels::UpdateScalars update;
  kernels::UpdateScalars pending_update;
  double clip = 0.0;  // 0: no clipping
  // A power of two that the loss is multiplied by; norm and update divide gradients by it.
  double loss_scale = 1.0;
  // If the gradient norm is not finite: true skips the update, so that every state kind keeps its
  // bits and the step goes on; false ends the run.
  bool skip_overflow = false;
};

// Results of a step, read after Executor::run.
struct StepResults {
  double grad_norm = 0;           // before clipping, of unscaled gradients
  bool overflow = false;          // the update was skipped
  bool clipped = false;           // the clip factor changes gradients, as updates read it
  std::string overflowed_tensor;  // the first, in tensor order, with a gradient that is not finite
};

class StateOperations {
 public:
  // round_sums_to: the dtype to which fp32 sums of gradients are rounded once, for norm and update;
  // kF32: gradients count as they are. Space and table must outlive this object.
  StateOperations(const model::ParameterSpace& space, const model::ParameterTable& table,
                  DType round_sums_to)
      : space_(space), table_(table), round_sums_to_(round_sums_to) {}

  void set_scalars(const StepScalars& scalars) {
    scalars_ = scalars;
    results_.assign(std::max<std::size_t>(scalars.updates.size(), 1), {});
  }
  const StepScalars& scalars() const { return scalars_; }
  const StepResults& results(std::size_t update = 0) const { return results_[update]; }

  // Does the instruction's work with these kernels. how: of an update on the host. Throws Error if
  // the norm is not finite and the scalars do not skip that.
  void run(kernels::StateKernels& kernels, const Program& program,
           const schedule::Instruction& instruction, const kernels::HostUpdate& how);

 private:
  void accumulate(kernels::StateKernels& kernels, const Program& program,
                  const schedule::Instruction& instruction) const;
  void fold(kernels::StateKernels& kernels, const Program& program,
            const schedule::Instruction& instruction) const;
  static void round(kernels::StateKernels& kernels, const Program& program,
                    const schedule::Instruction& instruction);
  void norm(kernels::StateKernels& kernels, const Program& program,
            const schedule::Instruction& instruction) const;
  void clip_factor(const Program& program, const schedule::Instruction& instruction);
  void optimizer_step(kernels::StateKernels& kernels, const Program& program,
                      const schedule::Instruction& instruction,
                      const kernels::HostUpdate& how) const;
  static void copy_found(kernels::StateKernels& kernels, const std::vector<Place>& reads,
                         const std::vector<Place>& writes, std::int32_t unit);
  // The scalars of the update that the instruction makes.
  const kernels::UpdateScalars& scalars_of(const Program& program,
                                           const schedule::Instruction& instruction) const;
  static void keep_weight(kernels::StateKernels& kernels, const Place* master, const Place& weight);

  const model::ParameterSpace& space_;
  const model::ParameterTable& table_;
  DType round_sums_to_;
  StepScalars scalars_;
  std::vector<StepResults> results_{1};  // by update
};

}  // namespace sluice::runtime
