// Which share of a run's storage each of its paths takes: as asked for, or by speed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::run {

// Bytes per second of each directory (which exists), as many read as written, in the order given:
// each in turn, three times over, some tenths of a second in all, on a file that is gone
// afterwards (64 MiB each). staging_bytes: of memory that it may take, of which it uses 16 MiB at
// most, freed when it returns. InputError, IoError.
inline constexpr std::uint64_t kLeastStagingBytes = kMiB;
std::vector<double> measure_path_speeds(offload::StorageEngine& engine,
                                        const std::vector<std::string>& directories,
                                        std::uint64_t staging_bytes);

// Shares by speed; where a path has no room for its own, the others take more; even ones where that
// does not help. config: its paths, whose free space is asked for.
std::vector<std::uint32_t> shares_within_room(const config::Config& config,
                                              const std::vector<double>& speeds,
                                              std::uint64_t storage_bytes);

// What a run of so many bytes on storage takes, once its directories are there:
// memory.storage_shares, or as measured now within memory.pinned; even ones where there is no room
// to measure. Fixed for the run. Empty: one path, or none needed. InputError, IoError.
std::vector<std::uint32_t> choose_storage_shares(const config::Config& config, std::uint64_t storage_bytes);

}  // namespace sluice::run
