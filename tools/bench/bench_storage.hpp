// `sluice bench storage`: the storage engine beside fio, in one run, on one file.
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
  bool sweep = true;              // whether fio's best setting is sought, too
  std::string engine = "auto";    // as make_storage_engine
  // What training has (StorageOptions). depth * block_bytes: the staging ring, at most 64 MiB.
  std::uint64_t block_bytes = offload::StorageOptions{}.request_bytes;
  std::uint32_t depth =
      static_cast<std::uint32_t>(offload::StorageOptions{}.queue_bytes / offload::StorageOptions{}.request_bytes);
};

// {"event":"bench","name":"storage","figures":{engine, block_bytes, depth, rounds, file_bytes,
//   ring_bytes, ring_huge_bytes (of it, in huge pages), {read,write,duplex}_gib_per_s,
//   {…}_cpu_ms_per_gib, {…}_rounds_gib_per_s, first_write_… (into extents never written before)}}
// Where fio is installed, medians over rounds of {ours, fio, fio at its best setting}, each round
// in the other order than the one before:
//   fio_memory: "huge pages" or "small pages" (no vm.nr_hugepages free); fio_{mix}_… at the same
//   block and depth; fio_sweep: [{mix, block_bytes, depth, gib_per_s, cpu_ms_per_gib}];
//   best_fio_{mix}_{block_bytes,depth,gib_per_s,cpu_ms_per_gib,rounds_gib_per_s}: the sweep's
//   fastest, measured anew, or fio at the same setting where that was faster in the rounds.
//   fio_depth: what fio makes of `depth`, the next power of two (fio 3.33).
//   ratio_{mix}, cpu_ratio_{mix}, default_of_best_{mix}: median of the rounds' ratios, ours by
//   fio's, and by fio's best; each with …_interval: [low, high], which holds the median of ever
//   more such rounds with 95% if rounds are independent; null for fewer than six. Runs differ by
//   more: a disk's state outlasts a round.
// Else "fio": "not installed", or why it failed.
// And what the tags of blocks on storage cost beside it (offload/tagged_space.hpp):
// tag_{bf16,fp32}_gib_per_s of one core in blocks of 4,096 elements, and tag_share_{read,write,
// duplex}, that core's time as a share of the transfer's.
// InputError: bad options, no room, no such directory. IoError. Rates are of one run of a shared
// machine.
nlohmann::json run_storage_bench(const StorageBenchOptions& options);

}  // namespace sluice::bench
