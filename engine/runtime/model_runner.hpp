// Carries out a schedule's compute and optimizer instructions with a model's layers and the
// kernels.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/runtime/collective_runner.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/state_operations.hpp"

namespace sluice::runtime {

class ModelRunner final : public OperationRunner {
 public:
  // device_kernels run inside the compute stream; host_kernels on the optimizer lane's thread.
  // parameters: of the model. microbatches: of each update of the step; losses are means over all
  // of their tokens. groups: of the step's ranks. gpu: the way of their messages on a GPU.
  ModelRunner(const model::Model& model, const model::BatchShape& batch, std::int32_t microbatches,
              const model::ParameterTable& parameters, kernels::Kernels& device_kernels,
              kernels::Kernels& host_kernels, const LaneGroups& groups,
              const std::optional<GpuMessages>& gpu = std::nullopt);

  // Compute that a host framework does (Op::kExternal). The framework starts the instruction's
  // work, on any thread, and calls `signal` once when the work is done, with an exception if it
  // failed. `program` and `instruction` stay valid until then, and `framework` must stay valid,
  // too.
  using Framework =
      std::function<void(const Program& program, const schedule::Instruction& instruction,
                         const std::function<void(std::exception_ptr)>& signal)>;
  void attach_framework(Framework framework) { framework_ = std::move(framework); }

  // As CollectiveRunner's.
  void use_gpu_group(collectives::Communicator& group) { collectives_.use_gpu_group(group); }

  void set_scalars(const StepScalars& scalars) { state_.set_scalars(scalars); }
  const StepResults& results(std::size_t update = 0) const { return state_.results(update); }

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
  const model::Model& model_;
  model::BatchShape batch_;
  std::int32_t microbatches_;
  StateOperations state_;
  kernels::Kernels& device_kernels_;
  kernels::Kernels& host_kernels_;
  CollectiveRunner collectives_;
  Framework framework_;
};

}  // namespace sluice::runtime
