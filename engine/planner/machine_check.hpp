// Whether this machine has what a plan takes: refused before anything is touched.
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

// What memory.storage = "auto" takes at most.
inline constexpr std::uint64_t kMostAutoStorageBytes = 64 * kGiB;

// A disk lacks room, which removing files may give.
class NoRoom : public InputError {
 public:
  using InputError::InputError;
};

// What budgets may take here, as read once: other programs change it at any moment.
struct MachineRoom {
  std::uint64_t memory_bytes = 0;   // available, the cgroup's limit included
  std::uint64_t storage_bytes = 0;  // free over all storage paths
  // Of a device with memory of its own, what nobody uses; none: it shares the host's.
  std::optional<std::uint64_t> device_bytes = {};
};

// "auto" budgets become numbers (memory.storage what is free on the storage paths, at most
// kMostAutoStorageBytes), and all are held against what is there. Throws InputError naming the
// keys, the bytes asked for and the bytes there. device_bytes: as MachineRoom's.
MachineRoom settle_budgets(config::Config& config, std::optional<std::uint64_t> device_bytes = {});
// The numbers for a machine that is not this one: kMostAutoStorageBytes, nothing to hold against.
void settle_budgets_elsewhere(config::Config& config);
// Takes away the suggestions that settle_budgets would have refused.
void keep_possible_suggestions(Refusal& refusal, const config::Config& config,
                               const MachineRoom& room);

// How a run lays its storage over its paths as far as the configuration says: by
// memory.storage_shares, else evenly, which is what measured shares fall back to.
offload::StripeLayout configured_layout(const config::Config& config);
// The paths, by number, on whose file systems so many bytes laid out so have no room.
std::vector<std::size_t> paths_without_room(const config::Config& config,
                                            const offload::StripeLayout& layout,
                                            std::uint64_t storage_bytes);

// Storage paths: directories that can be written (or made), with room for the plan's share; the
// engine that was asked for. Throws InputError naming the path, the needed and the available bytes.
void check_storage_paths(const config::Config& config, std::uint64_t needed_bytes);
// log.dir and checkpoint.dir: directories that can be written (or made). Throws InputError.
void check_run_directories(const config::Config& config);
// Room for one checkpoint and the final weights, beside the storage tier where they share a file
// system: a run must not end at its first save. Throws InputError with needed and available bytes.
void check_checkpoint_room(const config::Config& config, std::uint64_t checkpoint_bytes,
                           std::uint64_t storage_bytes);

}  // namespace sluice::planner
