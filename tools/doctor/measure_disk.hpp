// How fast storage is: bandwidth with many requests under way, and requests alone.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "offload/storage_engine.hpp"
#include "tools/bench/storage_rates.hpp"
#include "tools/doctor/samples.hpp"

namespace sluice::doctor {

struct DiskOptions {
  std::string directory = ".";
  std::string engine = "auto";
  std::uint64_t file_bytes = 512 * kMiB;  // of the trial file; at most an eighth of free space
};

class DiskTrial {
 public:
  // Makes the trial file, which is gone when the trial is. InputError: a directory that cannot be
  // used. IoError, TimeoutError: here and in a round.
  explicit DiskTrial(const DiskOptions& options);
  ~DiskTrial();
  DiskTrial(const DiskTrial&) = delete;
  DiskTrial& operator=(const DiskTrial&) = delete;

  void measure_round(double seconds_each);
  // The median of the rounds: at least one.
  void save(planner::HardwareProfile& profile) const;

 private:
  // Requests of one direction.
  struct Direction {
    offload::StorageOp op;
    bench::StorageMix mix;
    Samples bytes_per_s;                // with many large blocks under way
    Samples one_bytes_per_s;            // one small block after another
    Samples four_bytes_per_s;           // four at once
    std::vector<Samples> alone_s = {};  // by size
  };

  double rate(bench::StorageMix mix, std::uint64_t block_bytes, std::uint32_t depth,
              double seconds);
  double alone_s(offload::StorageOp op, std::uint64_t bytes, double seconds);

  bench::StorageLoad load_;
  std::unique_ptr<bench::StagingRing> ring_;
  std::unique_ptr<offload::StorageEngine> engine_;
  std::vector<std::int64_t> sizes_;
  std::array<Direction, 2> directions_;
  Samples duplex_bytes_per_s_;
  Samples latency_s_;
};

}  // namespace sluice::doctor
