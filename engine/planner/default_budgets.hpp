// Budgets that the configuration leaves to the machine ("auto", the default): the size of the
// machine, less a reserve. Each is a number before a plan begins, and config.memory.budget_origins says
// where it comes from, so that a plan can tell its reader.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "engine/planner/price/hardware_profile.hpp"

namespace sluice::planner {

// The most that memory.storage = "auto" takes on this machine: a file of that size is reserved.
inline constexpr std::uint64_t kMostAutoStorageBytes = 64 * kGiB;

// The bytes of this machine that one rank may have.
struct RankRoom {
  std::uint64_t memory_bytes = 0;   // of the host
  std::uint64_t storage_bytes = 0;  // over all storage paths
  // The memory of a device that has its own; none: the device is host memory too.
  std::optional<std::uint64_t> device_bytes = {};
};

// Puts numbers in the place of "auto" budgets. A device without memory of its own and pinned memory
// share the host's: half each, or the rest where the other has a given budget.
void settle_auto_budgets(config::Config& config, const RankRoom& room);
// Puts numbers in for a machine that is only described. A profile that does not state a tier's size (those
// that `doctor` measures do not) gives an assumed one.
void settle_auto_budgets(config::Config& config, const HardwareProfile& hardware);

}  // namespace sluice::planner
