// fio (the flexible I/O tester) as the yardstick of the storage benchmark: run beside, same file,
// same load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/bench/storage_rates.hpp"

namespace sluice {

struct FioLoad {
  std::string file;     // existing, written before
  std::string scratch;  // where fio's answer goes; replaced and removed
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 1;
  double seconds = 1;  // rounded up to whole ones (fio's unit)
};

// Nothing where fio is not installed. Error: fio failed, or answered what is no result of it;
// TimeoutError.
std::optional<StorageRate> run_fio(const FioLoad& load, StorageMix mix);

// The result in fio's JSON (`--output-format=json`), one job. Error naming what is missing.
StorageRate parse_fio(const std::string& text);

}  // namespace sluice
