// `sluice bench storage`: the storage engine beside fio, in one run, on one file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

struct StorageBenchOptions {
  std::string directory = ".";    // a file of `bytes` is made there and removed
  std::uint64_t bytes = 1 << 30;  // at least 16 MiB
  double seconds = 2.0;           // at most, for each of the six measurements
  std::string engine = "auto";    // as make_storage_engine
  std::uint64_t block_bytes = 512 * 1024;
  std::uint32_t depth = 16;  // depth * block_bytes: the staging ring, at most 8 MiB
};

// {"event":"bench","name":"storage","figures":{engine, block_bytes, depth, ring_bytes,
//   {read,write,duplex}_gib_per_s, {…}_cpu_ms_per_gib, and where fio is installed fio_… of the same
//   and ratio_{read,write,duplex} (engine / fio; CPU: cpu_ratio_…), else "fio": "not installed" or
//   why it failed}}
// and what the tags of blocks on storage cost beside it (offload/tagged_space.hpp):
// tag_{bf16,fp32}_gib_per_s of one core in blocks of 4,096 elements, and tag_share_{read,write,
// duplex}, that core's time as a share of the transfer's.
// The engine's ring lies in huge pages, as training's does; fio's buffers, which it allocates
// itself, lie in small ones. Where that decides (many segments for each block), the ratios say so.
// InputError: bad options, no room, no such directory. IoError. Rates are of one run of a shared
// machine.
nlohmann::json run_storage_bench(const StorageBenchOptions& options);

}  // namespace sluice
