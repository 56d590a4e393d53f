// The share of a run's storage that each path takes: as configured, or by measured speed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::run {

// Measures the bytes per second of each directory, with as many reads as writes, in the given
// order. Each directory is measured three times in turn, on a file of 64 MiB that is then removed;
// all of it takes some tenths of a second. staging_bytes: the memory that it may use; it uses at
// most 16 MiB and frees it on return. InputError, IoError.
inline constexpr std::uint64_t kLeastStagingBytes = kMiB;
std::vector<double> measure_path_speeds(offload::StorageEngine& engine,
                                        const std::vector<std::string>& directories,
                                        std::uint64_t staging_bytes);

// Shares by speed. If a path lacks room for its share, the others take more; if that does not help,
// all shares are equal. config: its paths are asked for their free space.
std::vector<std::uint32_t> shares_within_room(const config::Config& config,
                                              const std::vector<double>& speeds,
                                              std::uint64_t storage_bytes);

// Chooses the shares of a run with storage_bytes on storage; its directories exist. The shares are
// memory.storage_shares, or measured now within memory.pinned, or equal if there is no room to
// measure. They are fixed for the run. Empty: one path, or none needed. InputError, IoError.
std::vector<std::uint32_t> choose_storage_shares(const config::Config& config,
                                                 std::uint64_t storage_bytes);

}  // namespace sluice::run
