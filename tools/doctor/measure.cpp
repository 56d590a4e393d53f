#include "tools/doctor/measure.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/topology.hpp"
#include "kernels/host/parallel.hpp"
#include "offload/storage_engine.hpp"
#include "tools/bench/storage_rates.hpp"
#include "tools/doctor/aligned_bytes.hpp"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Repeats for about `seconds` (once untimed, then at least 3 times): the shortest and the mean time
// of a run.
struct Times {
  double best = 0;
  double mean = 0;
};
Times repeat(double seconds, const std::function<void()>& work) {
  constexpr int kLeastRuns = 3;
  work();
  Times times{HUGE_VAL, 0};
  double total = 0;
  int runs = 0;
  while (runs < kLeastRuns || total < seconds) {
    const double taken = std::max(seconds_of(work), 1e-9);
    times.best = std::min(times.best, taken);
    total += taken;
    ++runs;
  }
  times.mean = total / runs;
  return times;
}

void measure_memory(const MeasureOptions& options, HardwareProfile& profile) {
  const auto elems = static_cast<std::int64_t>(options.array_bytes / sizeof(float));
  constexpr std::int64_t kGrain = 1 << 18;
  const AlignedBytes first = make_bytes(options.array_bytes);
  const AlignedBytes second = make_bytes(options.array_bytes);
  const AlignedBytes third = make_bytes(options.array_bytes);
  auto* a = reinterpret_cast<float*>(first.get());
  const auto* b = reinterpret_cast<const float*>(second.get());
  const auto* c = reinterpret_cast<const float*>(third.get());
  const host::Parallel parallel(0);
  const Times triad = repeat(options.seconds_each, [&] {
    parallel.for_blocks(elems, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
    });
  });
  profile.memory_bandwidth_bytes_per_s =
      3.0 * sizeof(float) * static_cast<double>(elems) / triad.best;
  const std::uint64_t bytes = static_cast<std::uint64_t>(elems) * sizeof(float);
  const Times copy = repeat(options.seconds_each, [&] { std::memcpy(a, b, bytes); });
  profile.single_core_copy_bytes_per_s = static_cast<double>(bytes) / copy.best;
}

void measure_kernels(const MeasureOptions& options, HardwareProfile& profile) {
  for (OperationGrid& grid : measure_kernel_grids(*options.kernels, options.grids)) {
    profile.operations.push_back(std::move(grid));
  }
  // What is told to people, and prices what has no grid.
  for (const OperationGrid& grid : profile.operations) {
    constexpr OperationSize kLargeProduct{512, 1024, 1024};
    constexpr std::int64_t kPiece = 1 << 20;
    if (grid.operation == TimedOperation::kGemmNT) {
      const double rate = 2.0 * 512 * 1024 * 1024 / grid.seconds_at(kLargeProduct);
      (grid.dtype == DType::kF32 ? profile.gemm_f32_flops_per_s : profile.gemm_bf16_flops_per_s) =
          rate;
    }
    if (grid.operation == TimedOperation::kAdamW && grid.dtype == DType::kBF16) {
      profile.adam_params_per_s = static_cast<double>(kPiece) / grid.seconds_at({kPiece, 1, 1});
    }
  }
}

void measure_launch(const MeasureOptions& options, HardwareProfile& profile) {
  constexpr int kLaunches = 2000;
  const auto stream = options.device->create_stream("doctor");
  const Times times = repeat(options.seconds_each / 4, [&] {
    for (int i = 0; i < kLaunches; ++i) stream->launch([] {});
    stream->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
  });
  profile.launch_overhead_s = times.mean / kLaunches;

  // There and back again; each way the other side has had time to fall asleep.
  constexpr int kRounds = 50;
  constexpr auto kWork = std::chrono::microseconds(100);
  const auto other = options.device->create_stream("doctor2");
  const auto there = options.device->create_event();
  const auto back = options.device->create_event();
  const auto work = [kWork] {
    for (const auto end = Clock::now() + kWork; Clock::now() < end;) {
    }
  };
  const Times rounds = repeat(options.seconds_each / 4, [&] {
    for (int i = 0; i < kRounds; ++i) {
      stream->launch(work);
      stream->record(*there);
      other->wait(*there);
      other->launch(work);
      other->record(*back);
      stream->wait(*back);
    }
    stream->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
  });
  const double worked_s = std::chrono::duration<double>(kWork).count();
  profile.hand_over_s = std::max(rounds.mean / (2 * kRounds) - worked_s, profile.launch_overhead_s);
}

// Copies between pages and the device, one after another in a stream.
OperationGrid measure_copies(const MeasureOptions& options) {
  OperationGrid grid{TimedOperation::kCopy, DType::kU8, {{{4096, 65536, 1048576}, {1}, {1}}}, {}};
  const std::uint64_t bytes = std::min<std::uint64_t>(options.array_bytes, 64 * kMiB);
  const AlignedBytes host = make_bytes(bytes);
  const RawBuffer there = options.device->allocate(bytes);
  const auto stream = options.device->create_stream("doctor");
  for (const std::int64_t size : grid.axes[0]) {
    const auto piece = static_cast<std::uint64_t>(size);
    const std::uint64_t pieces = std::min<std::uint64_t>(bytes / piece, 1024);
    const Times times = repeat(options.seconds_each / 4, [&] {
      for (std::uint64_t i = 0; i < pieces; ++i) {
        stream->copy(there.data() + i * piece, host.get() + i * piece, piece,
                     CopyKind::kHostToDevice);
      }
      stream->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
    });
    grid.seconds.push_back(times.mean / static_cast<double>(pieces));
  }
  return grid;
}

std::uint64_t trial_bytes(const MeasureOptions& options, std::uint64_t block_bytes) {
  struct statvfs facts {};
  if (::statvfs(options.storage_directory.c_str(), &facts) != 0) {
    throw InputError("storage directory '" + options.storage_directory +
                     "' cannot be used: " + std::strerror(errno));
  }
  const std::uint64_t free_bytes = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  const std::uint64_t bytes = std::min(options.storage_bytes, free_bytes / 8);
  return std::max(bytes / block_bytes, std::uint64_t{4}) * block_bytes;
}

void measure_disk(const MeasureOptions& options, HardwareProfile& profile) {
  StorageLoad load;
  load.file_bytes = trial_bytes(options, load.block_bytes);
  const StagingRing ring(load.block_bytes * load.depth);
  StorageOptions engine_options;
  engine_options.queue_depth = load.depth;
  const auto engine = make_storage_engine(options.storage_engine, engine_options);
  engine->register_memory(ring.data(), ring.bytes());
  load.file =
      engine->open(options.storage_directory + "/.sluice_doctor_" + std::to_string(::getpid()),
                   StorageFileMode::kScratch, load.file_bytes);
  // Once over the whole file, untimed: reading extents that were never written costs nothing.
  load.bytes = load.file_bytes;
  load.seconds = kDefaultDeadlineSeconds;
  measure_storage(*engine, load, StorageMix::kWrite, ring.data());
  load.bytes = std::uint64_t{1} << 50;  // the time decides
  load.seconds = 2 * options.seconds_each;
  const auto rate = [&](StorageMix mix) {
    return measure_storage(*engine, load, mix, ring.data()).bytes_per_s();
  };
  profile.storage_read_bytes_per_s = rate(StorageMix::kRead);
  profile.storage_write_bytes_per_s = rate(StorageMix::kWrite);
  profile.storage_duplex_bytes_per_s = rate(StorageMix::kDuplex);
  // Four at once against one after another; where four reach the bandwidth, it alone is the limit.
  load.block_bytes = 256 * kKiB;
  load.seconds = options.seconds_each / 2;
  profile.storage_overlap = 1.0;
  for (const auto& [mix, bandwidth] :
       {std::pair(StorageMix::kRead, profile.storage_read_bytes_per_s),
        std::pair(StorageMix::kWrite, profile.storage_write_bytes_per_s)}) {
    load.depth = 1;
    const double one = rate(mix);
    load.depth = 4;
    const double four = rate(mix);
    if (four > 0.9 * bandwidth) continue;
    profile.storage_overlap = std::clamp((four / one - 1) / 3, 0.01, profile.storage_overlap);
  }
  const auto alone = [&](StorageOp op, std::uint64_t bytes) {
    return measure_transfer_alone(*engine, {op, load.file, 0, ring.data(), bytes}, load.file_bytes,
                                  options.seconds_each / 4);
  };
  profile.storage_latency_s = alone(StorageOp::kRead, 4096);
  for (const auto& [operation, op] :
       {std::pair(TimedOperation::kStorageRead, StorageOp::kRead),
        std::pair(TimedOperation::kStorageWrite, StorageOp::kWrite)}) {
    OperationGrid grid{
        operation, DType::kU8, {{{4096, 65536, 262144, 1048576, 4194304}, {1}, {1}}}, {}};
    for (const std::int64_t size : grid.axes[0]) {
      const auto bytes = static_cast<std::uint64_t>(size);
      if (bytes <= ring.bytes() && bytes <= load.file_bytes) {
        grid.seconds.push_back(alone(op, bytes));
      }
    }
    grid.axes[0].resize(grid.seconds.size());
    profile.operations.push_back(std::move(grid));
  }
  engine->close(load.file);
}

}  // namespace

HardwareProfile measure_hardware(const MeasureOptions& options) {
  SLUICE_CHECK(options.kernels != nullptr && options.device != nullptr && options.seconds_each > 0);
  const HostTopology host = read_host_topology();
  HardwareProfile profile;
  profile.backend = options.device->facts().backend;
  profile.cpu_name = host.cpu_name;
  profile.cores = std::max(host.cores, 1);
  measure_disk(options, profile);  // first: it is what most often cannot be done
  measure_memory(options, profile);
  measure_kernels(options, profile);
  measure_launch(options, profile);
  profile.operations.push_back(measure_copies(options));
  return profile;
}

}  // namespace sluice
