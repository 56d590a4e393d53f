// Carries out a schedule's compute and optimizer instructions with a model's layers and the
// kernels.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/parameter_table.hpp"
#include "engine/runtime/collective_runner.hpp"
#include "engine/runtime/executor.hpp"

namespace sluice::runtime {

// The numbers of one step that the schedule leaves open.
struct StepScalars {
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

class ModelRunner final : public OperationRunner {
 public:
  // device_kernels run inside the compute stream; host_kernels on the optimizer lane's thread.
  // parameters: of the model. microbatches: of the training step; losses are means over all of its
  // tokens. ranks: the step's data-parallel group.
  ModelRunner(const model::Model& model, const model::BatchShape& batch, std::int32_t microbatches,
              const model::ParameterTable& parameters, kernels::Kernels& device_kernels,
              kernels::Kernels& host_kernels, collectives::Communicator& ranks);

  // Compute that a host framework does (Op::kExternal). The framework starts the instruction's
  // work, on any thread, and calls `signal` once when the work is done, with an exception if it
  // failed. `program` and `instruction` stay valid until then, and `framework` must stay valid,
  // too.
  using Framework =
      std::function<void(const Program& program, const schedule::Instruction& instruction,
                         const std::function<void(std::exception_ptr)>& signal)>;
  void attach_framework(Framework framework) { framework_ = std::move(framework); }

  void set_scalars(const StepScalars& scalars) {
    scalars_ = scalars;
    results_ = {};
  }
  const StepResults& results() const { return results_; }

  void run_on_device(const Program& program, const schedule::Instruction& instruction,
                     device::Stream& stream) override;
  void run_on_host(const Program& program, const schedule::Instruction& instruction,
                   const kernels::HostUpdate& how = {}) override;
  // InternalError where no framework is attached.
  void run_external(const Program& program, const schedule::Instruction& instruction,
                    const std::function<void(std::exception_ptr)>& signal) override;

  void abort_collectives(const std::string& why) noexcept override { collectives_.abort(why); }

  // The addresses of a compute instruction, as its layer takes them.
  model::PassBuffers pass_buffers(const Program& program,
                                  const schedule::Instruction& instruction) const;
  // Runs a compute instruction's layer now, on this thread.
  void run_pass(const schedule::Instruction& instruction, const model::PassBuffers& buffers);

 private:
  void accumulate(kernels::Kernels& kernels, const Program& program,
                  const schedule::Instruction& instruction) const;
  void fold(kernels::Kernels& kernels, const Program& program,
            const schedule::Instruction& instruction) const;
  static void round(kernels::Kernels& kernels, const Program& program,
                    const schedule::Instruction& instruction);
  void norm(kernels::Kernels& kernels, const Program& program,
            const schedule::Instruction& instruction) const;
  void clip_factor(const Program& program, const schedule::Instruction& instruction);
  void optimizer_step(kernels::Kernels& kernels, const Program& program,
                      const schedule::Instruction& instruction,
                      const kernels::HostUpdate& how) const;
  static void copy_found(kernels::Kernels& kernels, const std::vector<Place>& reads,
                         const std::vector<Place>& writes, std::int32_t unit);
  static void keep_weight(kernels::Kernels& kernels, const Place* master, const Place& weight);
  void run_state_operation(kernels::Kernels& kernels, const Program& program,
                           const schedule::Instruction& instruction,
                           const kernels::HostUpdate& how) const;
  bool sums_micro_batches() const { return microbatches_ > 1; }
  std::string tensor_of_norm_block(std::size_t block) const;

  const model::Model& model_;
  model::BatchShape batch_;
  std::int32_t microbatches_;
  const model::ParameterTable& parameters_;
  kernels::Kernels& device_kernels_;
  kernels::Kernels& host_kernels_;
  CollectiveRunner collectives_;
  StepScalars scalars_;
  StepResults results_;
  Framework framework_;
};

}  // namespace sluice::runtime
