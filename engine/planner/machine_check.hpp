// Whether this machine has what a plan takes: refused before anything is touched.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "engine/planner/plan.hpp"
#include "engine/train/config.hpp"

namespace sluice {

// What memory.storage = "auto" takes at most.
inline constexpr std::uint64_t kMostAutoStorageBytes = 64 * kGiB;

// "auto" budgets become numbers: memory.storage what is free on the storage paths, at most
// kMostAutoStorageBytes.
void resolve_auto_budgets(Config& config);
// The same for a machine that is not this one: kMostAutoStorageBytes.
void resolve_auto_budgets_elsewhere(Config& config);

// Budgets against what is there: memory (the cgroup's limit included), free space on the storage
// paths. Throws InputError naming the keys, the bytes asked for and the bytes there.
void check_budgets(const Config& config);
// Takes away the suggestions that check_budgets would refuse.
void keep_possible_suggestions(Refusal& refusal, const Config& config);

// Storage paths: directories that can be written (or made), with room for the plan's share; the
// engine that was asked for. Throws InputError naming the path, the needed and the available bytes.
void check_storage_paths(const Config& config, std::uint64_t needed_bytes);
// log.dir and checkpoint.dir: directories that can be written (or made). Throws InputError.
void check_run_directories(const Config& config);
// Room for one checkpoint and the final weights, beside the storage tier where they share a file
// system: a run must not end at its first save. Throws InputError with needed and available bytes.
void check_checkpoint_room(const Config& config, std::uint64_t checkpoint_bytes,
                           std::uint64_t storage_bytes);

}  // namespace sluice
