// Checks that this machine has the memory and disk space that a plan takes, before anything is
// touched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "engine/planner/plan.hpp"
#include "offload/stripe_layout.hpp"

namespace sluice::planner {

// A disk lacks room, which removing files may give.
class NoRoom : public InputError {
 public:
  using InputError::InputError;
};

// The room for budgets on this machine, read once, since other programs change it at any moment.
struct MachineRoom {
  std::uint64_t memory_bytes = 0;   // available, the cgroup's limit included
  std::uint64_t storage_bytes = 0;  // free over all storage paths
  // The unused memory of a device with memory of its own; none: it shares the host's.
  std::optional<std::uint64_t> device_bytes = {};
  int ranks = 1;  // that share it, each with the same budgets
};

// Turns "auto" budgets into numbers (default_budgets.hpp) and holds all budgets against the machine.
// Throws InputError that names the keys, the bytes asked for and the bytes there. device_bytes,
// ranks: as MachineRoom's.
MachineRoom settle_budgets(config::Config& config, std::optional<std::uint64_t> device_bytes = {},
                           int ranks = 1);
// Removes the suggestions that settle_budgets would refuse.
void keep_possible_suggestions(Refusal& refusal, const config::Config& config,
                               const MachineRoom& room);

// Says why a refusal lacks storage, if the storage paths cannot be written.
void note_storage_obstacle(Refusal& refusal, const config::Config& config);

// The layout of a run's storage over its paths as the configuration gives it: by
// memory.storage_shares, else evenly, which is also the fallback of measured shares.
offload::StripeLayout configured_layout(const config::Config& config);
// The paths, by number, with a file system that has no room for so many bytes in that layout.
std::vector<std::size_t> paths_without_room(const config::Config& config,
                                            const offload::StripeLayout& layout,
                                            std::uint64_t storage_bytes);

// Storage paths: directories that can be written (or made), with room for the plan's share; the
// engine that was asked for. Throws InputError naming the path, the needed and the available bytes.
void check_storage_paths(const config::Config& config, std::uint64_t needed_bytes);
// log.dir and checkpoint.dir: directories that can be written (or made). Throws InputError.
void check_run_directories(const config::Config& config);
// Room for one checkpoint and the final weights, next to the storage tier where they share a file
// system: a run must not end at its first save. Throws InputError with needed and available bytes.
void check_checkpoint_room(const config::Config& config, std::uint64_t checkpoint_bytes,
                           std::uint64_t storage_bytes);

}  // namespace sluice::planner
