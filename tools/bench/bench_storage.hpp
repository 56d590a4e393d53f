// `sluice bench storage`: the storage engine compared with fio, in one run, on one file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/storage_engine.hpp"

namespace sluice::bench {

struct StorageBenchOptions {
  std::string directory = ".";    // a file of `bytes` is made there and removed
  std::uint64_t bytes = 1 << 30;  // at least 16 MiB, and twice the ring
  double seconds = 0.4;           // of each measurement: many short ones meet the same disk
  int rounds = 21;                // 1 to 1000
  bool sweep = true;              // also look for fio's best setting
  std::string engine = "auto";    // as make_storage_engine
  // The values of training (StorageOptions). depth * block_bytes is the staging ring, at
  // most 64 MiB.
  std::uint64_t block_bytes = offload::StorageOptions{}.request_bytes;
  std::uint32_t depth = static_cast<std::uint32_t>(offload::StorageOptions{}.queue_bytes /
                                                   offload::StorageOptions{}.request_bytes);
};

// {"event":"bench","name":"storage","figures":{engine, block_bytes, depth, rounds, file_bytes,
//   ring_bytes, ring_huge_bytes (of these, in huge pages), {read,write,duplex}_gib_per_s,
//   {…}_cpu_ms_per_gib, {…}_rounds_gib_per_s, first_write_… (into extents never written before)}}
// If fio is installed, figures are medians over rounds of {ours, fio, fio at its best setting}; the
// order is reversed in every other round:
//   fio_memory: "huge pages" or "small pages" (no vm.nr_hugepages free); fio_{mix}_… at the same
//   block and depth; fio_sweep: [{mix, block_bytes, depth, gib_per_s, cpu_ms_per_gib}];
//   best_fio_{mix}_{block_bytes,depth,gib_per_s,cpu_ms_per_gib,rounds_gib_per_s}: the sweep's
//   fastest, measured anew, or fio at the same setting where that was faster in the rounds.
//   fio_depth: `depth` as fio rounds it, to the next power of two (fio 3.33).
//   ratio_{mix}, cpu_ratio_{mix}, default_of_best_{mix}: median of the rounds' ratios, ours / fio's
//   and ours / fio's best. Each has …_interval: [low, high], the 95% confidence interval of the
//   median if rounds are independent; null for fewer than six rounds. Runs differ by more, because
//   a disk's state outlasts a round.
// Otherwise "fio" is "not installed" or the reason of its failure.
// The cost of tagging blocks on storage (offload/tagged_space.hpp) is measured too:
// tag_{bf16,fp32}_gib_per_s of one core in norm blocks of 4,096 elements, and
// tag_share_{read,write, duplex}, that core's time as a share of the transfer's.
// Throws InputError for bad options, no room or no such directory; IoError. Rates on a shared
// machine vary between runs.
nlohmann::json run_storage_bench(const StorageBenchOptions& options);

}  // namespace sluice::bench
