#include "tools/doctor/measure.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "base/topology.hpp"
#include "kernels/host/parallel.hpp"
#include "offload/storage_engine.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct FreeBytes {
  void operator()(std::byte* data) const { std::free(data); }
};
using Bytes = std::unique_ptr<std::byte[], FreeBytes>;

// Zeroed, so that every page is there; 2 MiB-aligned.
Bytes make_bytes(std::uint64_t bytes) {
  const std::uint64_t size = round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes);
  Bytes data(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size)));
  if (!data) throw std::bad_alloc();
  std::memset(data.get(), 0, size);
  return data;
}

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
  const Bytes first = make_bytes(options.array_bytes);
  const Bytes second = make_bytes(options.array_bytes);
  const Bytes third = make_bytes(options.array_bytes);
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

// Shapes of a small decoder: a square product, an MLP's two, and one with few rows (a micro-batch).
constexpr std::array<GemmRate, 4> kGemmShapes{{{512, 768, 768, DType::kF32, 0},
                                               {512, 3072, 768, DType::kF32, 0},
                                               {512, 768, 3072, DType::kF32, 0},
                                               {128, 1024, 1024, DType::kF32, 0}}};

GemmRate measure_gemm(Kernels& kernels, GemmRate rate, double seconds) {
  GemmShape shape;
  shape.m = rate.m;
  shape.n = rate.n;
  shape.k = rate.k;
  shape.transpose_b = true;  // weights are kept [out, in]
  shape.dtype = rate.dtype;
  shape.output = rate.dtype;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return make_bytes(static_cast<std::uint64_t>(rows * cols) * dtype_bytes(rate.dtype));
  };
  const Bytes a = bytes(rate.m, rate.k);
  const Bytes b = bytes(rate.n, rate.k);
  const Bytes c = bytes(rate.m, rate.n);
  const Bytes workspace = make_bytes(kernels.gemm_workspace_bytes(shape));
  const Times times = repeat(
      seconds, [&] { kernels.gemm(shape, a.get(), b.get(), nullptr, c.get(), workspace.get()); });
  const double operations =
      2.0 * static_cast<double>(rate.m) * static_cast<double>(rate.n) * static_cast<double>(rate.k);
  rate.flops_per_s = operations / times.mean;
  return rate;
}

void measure_gemms(const MeasureOptions& options, HardwareProfile& profile) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    double log_sum = 0;
    for (GemmRate shape : kGemmShapes) {
      shape.dtype = dtype;
      profile.gemm_rates.push_back(measure_gemm(*options.kernels, shape, options.seconds_each / 2));
      log_sum += std::log(profile.gemm_rates.back().flops_per_s);
    }
    const double mean = std::exp(log_sum / static_cast<double>(kGemmShapes.size()));
    (dtype == DType::kF32 ? profile.gemm_f32_flops_per_s : profile.gemm_bf16_flops_per_s) = mean;
  }
}

void measure_adam(const MeasureOptions& options, HardwareProfile& profile) {
  // 16 bytes for each parameter: streamed from memory, as in training.
  const auto elems = static_cast<std::int64_t>(options.array_bytes / 16);
  const Bytes grad = make_bytes(static_cast<std::uint64_t>(elems) * sizeof(bf16));
  const Bytes weight = make_bytes(static_cast<std::uint64_t>(elems) * sizeof(bf16));
  const Bytes master = make_bytes(static_cast<std::uint64_t>(elems) * sizeof(float));
  const Bytes moment1 = make_bytes(static_cast<std::uint64_t>(elems) * sizeof(float));
  const Bytes moment2 = make_bytes(static_cast<std::uint64_t>(elems) * sizeof(float));
  AdamWBuffers buffers;
  buffers.grad = grad.get();
  buffers.master = reinterpret_cast<float*>(master.get());
  buffers.moment1 = reinterpret_cast<float*>(moment1.get());
  buffers.moment2 = reinterpret_cast<float*>(moment2.get());
  buffers.weight = weight.get();
  buffers.elems = elems;
  const ParameterSegment all{0, elems, 0.1f};
  AdamWScalars scalars;
  scalars.lr = 1e-3f;
  const Times times = repeat(options.seconds_each, [&] {
    options.kernels->adamw(buffers, {&all, 1}, scalars);
  });
  profile.adam_params_per_s = static_cast<double>(elems) / times.mean;
}

void measure_launch(const MeasureOptions& options, HardwareProfile& profile) {
  constexpr int kLaunches = 2000;
  const auto stream = options.device->create_stream("doctor");
  const Times times = repeat(options.seconds_each / 4, [&] {
    for (int i = 0; i < kLaunches; ++i) stream->launch([] {});
    stream->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
  });
  profile.launch_overhead_s = times.mean / kLaunches;
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
  profile.storage_latency_s =
      measure_storage_latency(*engine, load.file, load.file_bytes, ring.data());
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
  measure_gemms(options, profile);
  measure_adam(options, profile);
  measure_launch(options, profile);
  return profile;
}

}  // namespace sluice
