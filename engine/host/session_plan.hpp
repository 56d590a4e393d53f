// Where a session's optimizer state lies: in pinned memory as far as the budget allows, the rest on
// storage. Planned before anything is allocated, to the byte; or refused with the least change.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"
#include "kernels/kernels.hpp"

namespace sluice::host {

// No plan fits the budgets. The message names the budget, the bytes needed and the bytes there; the
// members have the same facts for a program.
class Refused : public Error {
 public:
  Refused(const std::string& message, Tier tier_in, std::uint64_t needed, std::uint64_t available)
      : Error(message), tier(tier_in), needed_bytes(needed), available_bytes(available) {}
  Tier tier;
  std::uint64_t needed_bytes, available_bytes;
};

enum class StatePlace { kAuto, kPinned, kStorage };

struct SessionPlan {
  schedule::StepOptions options;
  schedule::Schedule update;
  schedule::Schedule save;  // of a session that commits; else without instructions
  runtime::MemoryNeed need;
};

// The units as the schedule compiler sees them: state alone, no passes.
schedule::StepModel make_state_model(const model::ParameterSpace& space,
                                     const std::vector<std::string>& names,
                                     const model::ParameterTable& table,
                                     const kernels::StateKernels& kernels);

// budgets: the bytes that are left of each tier. log_bytes: of a session that commits, whose state
// has room twice on storage; 0: of another. Throws Refused.
SessionPlan plan_session(const schedule::StepModel& model,
                         const std::array<std::uint64_t, kTierCount>& budgets_bytes,
                         StatePlace place, std::uint64_t log_bytes = 0);

}  // namespace sluice::host
