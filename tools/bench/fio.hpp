// fio (the flexible I/O tester) as the yardstick of the storage benchmark: run beside, same file,
// same load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {

struct FioLoad {
  std::string file;     // existing, written before
  std::string scratch;  // where fio's answer goes; replaced and removed
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 1;
  double seconds = 1;       // in whole milliseconds
  bool huge_pages = false;  // its buffers in pages of vm.nr_hugepages, else in small ones
};

// Whether the system has huge pages free for fio's buffers of so many bytes (vm.nr_hugepages,
// /proc/meminfo). Without them fio, whose buffers are then scattered over small pages, needs a
// segment for each 4 KiB of a block, which costs it half of its speed on a virtual disk.
bool huge_pages_free(std::uint64_t buffer_bytes);
// Requests that fio keeps in flight where it is asked for `depth`, as its own histogram
// (iodepth_level) tells: the next power of two.
std::uint32_t fio_depth(std::uint32_t depth);
// That fio takes for so many blocks.
std::uint64_t fio_buffer_bytes(std::uint64_t block_bytes, std::uint32_t depth);
// The same, of a text like /proc/meminfo.
bool huge_pages_free(const std::string& meminfo, std::uint64_t buffer_bytes);

// Nothing where fio is not installed. Error: fio failed, or answered what is no result of it;
// TimeoutError.
std::optional<StorageRate> run_fio(const FioLoad& load, StorageMix mix);

// The result in fio's JSON (`--output-format=json`), one job. Error naming what is missing.
StorageRate parse_fio(const std::string& text);

}  // namespace sluice::bench
