// Carries out the instructions of a session's update: state operations, and the hand-over of units
// that the program updates itself.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/host/session_space.hpp"
#include "engine/host/update_exchange.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/state_operations.hpp"

namespace sluice::host {

// All instructions are on the host's optimizer lane. The arguments of the constructor must outlive
// it.
class StateRunner final : public runtime::OperationRunner {
 public:
  StateRunner(const SessionSpace& space, const model::ParameterTable& table,
              kernels::StateKernels& kernels)
      : space_(space),
        table_(table),
        operations_(space.space(), table, DType::kF32),
        kernels_(kernels) {}
  // Scalars of the next pass, and results of the last one.
  runtime::StateOperations& operations() { return operations_; }
  // For the next pass. Null: it has no unit of the program's own.
  void set_exchange(UpdateExchange* exchange) { exchange_ = exchange; }

  void run_on_device(const runtime::Program& program, const schedule::Instruction& instruction,
                     device::Stream& stream) override;
  void run_on_host(const runtime::Program& program, const schedule::Instruction& instruction,
                   const kernels::HostUpdate& how) override;

 private:
  void hand_over(const runtime::Program& program, const schedule::Instruction& instruction,
                 const kernels::HostUpdate& how);
  std::vector<CallerPart> parts_of(const runtime::Program& program,
                                   const schedule::Instruction& instruction, double factor) const;

  const SessionSpace& space_;
  const model::ParameterTable& table_;
  runtime::StateOperations operations_;
  kernels::StateKernels& kernels_;
  UpdateExchange* exchange_ = nullptr;
};

}  // namespace sluice::host
