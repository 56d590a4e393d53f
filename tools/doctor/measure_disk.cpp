#include "tools/doctor/measure_disk.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::doctor {
namespace {

// As large as most transfers of a streamed update, and many at once: the most that a lane moves.
constexpr std::uint64_t kBlockBytes = 2 * kMiB;
constexpr std::uint32_t kDepth = 16;
constexpr std::uint64_t kSmallBlockBytes = 256 * kKiB;
constexpr std::uint64_t kLatencyBytes = 4096;

std::uint64_t trial_bytes(const DiskOptions& options, std::uint64_t block_bytes) {
  struct statvfs facts {};
  if (::statvfs(options.directory.c_str(), &facts) != 0) {
    throw InputError("storage directory '" + options.directory +
                     "' cannot be used: " + std::strerror(errno));
  }
  const std::uint64_t free_bytes = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  const std::uint64_t bytes = std::min(options.file_bytes, free_bytes / 8);
  return std::max(bytes / block_bytes, std::uint64_t{4}) * block_bytes;
}

}  // namespace

DiskTrial::DiskTrial(const DiskOptions& options)
    : directions_{Direction{offload::StorageOp::kRead, bench::StorageMix::kRead, {}, {}, {}},
                  Direction{offload::StorageOp::kWrite, bench::StorageMix::kWrite, {}, {}, {}}} {
  load_.block_bytes = kBlockBytes;
  load_.depth = kDepth;
  load_.file_bytes = trial_bytes(options, load_.block_bytes);
  ring_ = std::make_unique<bench::StagingRing>(load_.block_bytes * load_.depth);
  for (const std::int64_t size : {4096, 65536, 262144, 1048576, 4194304}) {
    const auto bytes = static_cast<std::uint64_t>(size);
    if (bytes <= ring_->bytes() && bytes <= load_.file_bytes) sizes_.push_back(size);
  }
  for (Direction& direction : directions_) direction.alone_s.resize(sizes_.size());
  offload::StorageOptions engine_options;
  engine_options.queue_depth = load_.depth;
  engine_options.write_depth = load_.depth;
  engine_ = offload::make_storage_engine(options.engine, engine_options);
  engine_->register_memory(ring_->data(), ring_->bytes());
  load_.file = engine_->open(options.directory + "/.sluice_doctor_" + std::to_string(::getpid()),
                             offload::StorageFileMode::kScratch, load_.file_bytes);
  // Once over the whole file, untimed: reading extents that were never written costs nothing.
  bench::StorageLoad whole = load_;
  whole.bytes = load_.file_bytes;
  whole.seconds = kDefaultDeadlineSeconds;
  bench::measure_storage(*engine_, whole, bench::StorageMix::kWrite, ring_->data());
}

DiskTrial::~DiskTrial() = default;

double DiskTrial::rate(bench::StorageMix mix, std::uint64_t block_bytes, std::uint32_t depth,
                       double seconds) {
  bench::StorageLoad load = load_;
  load.block_bytes = block_bytes;
  load.depth = depth;
  load.seconds = seconds;
  load.bytes = std::uint64_t{1} << 50;  // the time decides
  return bench::measure_storage(*engine_, load, mix, ring_->data()).bytes_per_s();
}

double DiskTrial::alone_s(offload::StorageOp op, std::uint64_t bytes, double seconds) {
  return bench::measure_transfer_alone(*engine_, {op, load_.file, 0, ring_->data(), bytes},
                                       load_.file_bytes, seconds);
}

void DiskTrial::measure_round(double seconds_each) {
  for (Direction& direction : directions_) {
    direction.bytes_per_s.add(
        rate(direction.mix, load_.block_bytes, load_.depth, 2 * seconds_each));
    direction.one_bytes_per_s.add(rate(direction.mix, kSmallBlockBytes, 1, seconds_each / 2));
    direction.four_bytes_per_s.add(rate(direction.mix, kSmallBlockBytes, 4, seconds_each / 2));
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      direction.alone_s[i].add(
          alone_s(direction.op, static_cast<std::uint64_t>(sizes_[i]), seconds_each / 4));
    }
  }
  duplex_bytes_per_s_.add(
      rate(bench::StorageMix::kDuplex, load_.block_bytes, load_.depth, 2 * seconds_each));
  latency_s_.add(alone_s(offload::StorageOp::kRead, kLatencyBytes, seconds_each / 4));
}

void DiskTrial::save(planner::HardwareProfile& profile) const {
  const auto& [read, write] = directions_;
  profile.storage_read_bytes_per_s = read.bytes_per_s.median();
  profile.storage_write_bytes_per_s = write.bytes_per_s.median();
  profile.storage_duplex_bytes_per_s = duplex_bytes_per_s_.median();
  profile.storage_latency_s = latency_s_.median();
  // If four transfers reach the bandwidth, it alone is the limit.
  profile.storage_overlap = 1.0;
  for (const Direction& direction : directions_) {
    const double four = direction.four_bytes_per_s.median();
    if (four > 0.9 * direction.bytes_per_s.median()) continue;
    const double gain = (four / direction.one_bytes_per_s.median() - 1) / 3;
    profile.storage_overlap = std::clamp(gain, 0.01, profile.storage_overlap);
  }
  for (const auto& [operation, direction] :
       {std::pair(planner::TimedOperation::kStorageRead, &read),
        std::pair(planner::TimedOperation::kStorageWrite, &write)}) {
    planner::OperationGrid grid{operation, DType::kU8, {{sizes_, {1}, {1}}}, {}};
    for (const Samples& seconds : direction->alone_s) grid.seconds.push_back(seconds.median());
    profile.operations.push_back(std::move(grid));
  }
}

}  // namespace sluice::doctor
