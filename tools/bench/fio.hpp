// Runs fio (the flexible I/O tester), the baseline of the storage benchmark, on the same file with
// the same load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {

struct FioLoad {
  std::string file;     // existing, written before
  std::string scratch;  // path for fio's answer; replaced and removed
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 1;
  double seconds = 1;       // in whole milliseconds
  bool huge_pages = false;  // its buffers in pages of vm.nr_hugepages, else in small ones
};

// Whether the system has huge pages free for fio's buffers of this size (vm.nr_hugepages,
// /proc/meminfo). Without them fio's buffers are scattered over small pages. The kernel then needs
// a segment for each 4 KiB of a block, and that halves fio's speed on a virtual disk.
bool huge_pages_free(std::uint64_t buffer_bytes);
// Requests that fio keeps in flight for a requested `depth`: the next power of two, as its own
// histogram (iodepth_level) shows.
std::uint32_t fio_depth(std::uint32_t depth);
// The bytes of buffers that fio allocates for this depth.
std::uint64_t fio_buffer_bytes(std::uint64_t block_bytes, std::uint32_t depth);
// Whether the free huge pages of a text like /proc/meminfo hold the buffers.
bool huge_pages_free(const std::string& meminfo, std::uint64_t buffer_bytes);

// Returns nothing if fio is not installed. Throws Error if fio failed or its answer cannot
// be parsed; TimeoutError.
std::optional<StorageRate> run_fio(const FioLoad& load, StorageMix mix);

// Parses fio's JSON (`--output-format=json`) of one job. Throws Error that names a missing field.
StorageRate parse_fio(const std::string& text);

}  // namespace sluice::bench
