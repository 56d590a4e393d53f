#include "tools/doctor/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/topology.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/doctor/aligned_bytes.hpp"
#include "tools/doctor/samples.hpp"

namespace sluice::doctor {
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

// Rates of memory, and times of a device's launches, hand-overs between streams and copies.
class DeviceTrial {
 public:
  DeviceTrial(device::Device& device, std::uint64_t array_bytes)
      : bytes_(array_bytes / sizeof(float) * sizeof(float)),
        first_(make_bytes(bytes_)),
        second_(make_bytes(bytes_)),
        third_(make_bytes(bytes_)),
        copied_bytes_(std::min<std::uint64_t>(bytes_, 64 * kMiB)),
        there_(device.allocate(copied_bytes_)),
        stream_(device.create_stream("doctor")),
        other_(device.create_stream("doctor2")),
        gone_(device.create_event()),
        back_(device.create_event()),
        copy_s_(kCopySizes.size()) {}

  void measure_round(double seconds_each) {
    measure_memory(seconds_each);
    measure_launch(seconds_each);
    measure_copies(seconds_each);
  }

  void save(planner::HardwareProfile& profile) const {
    profile.memory_bandwidth_bytes_per_s = 3.0 * static_cast<double>(bytes_) / triad_s_.median();
    profile.single_core_copy_bytes_per_s = static_cast<double>(bytes_) / memcpy_s_.median();
    profile.launch_overhead_s = launch_s_.median();
    profile.hand_over_s = std::max(hand_over_s_.median(), profile.launch_overhead_s);
    planner::OperationGrid grid{
        planner::TimedOperation::kCopy, DType::kU8, {{kCopySizes, {1}, {1}}}, {}};
    for (const Samples& seconds : copy_s_) grid.seconds.push_back(seconds.median());
    profile.operations.push_back(std::move(grid));
  }

 private:
  // The best of a round's runs: the limit.
  void measure_memory(double seconds) {
    constexpr std::int64_t kGrain = 1 << 18;
    auto* a = reinterpret_cast<float*>(first_.get());
    const auto* b = reinterpret_cast<const float*>(second_.get());
    const auto* c = reinterpret_cast<const float*>(third_.get());
    const auto elems = static_cast<std::int64_t>(bytes_ / sizeof(float));
    triad_s_.add(repeat(seconds, [&] {
                   parallel_.for_blocks(elems, kGrain, [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
                   });
                 }).best);
    memcpy_s_.add(repeat(seconds, [&] { std::memcpy(a, b, bytes_); }).best);
  }

  void measure_launch(double seconds) {
    constexpr int kLaunches = 2000;
    launch_s_.add(repeat(seconds,
                         [&] {
                           for (int i = 0; i < kLaunches; ++i) stream_->launch([] {});
                           synchronize();
                         })
                      .mean /
                  kLaunches);

    // There and back again; each way the other side has had time to fall asleep.
    constexpr int kRoundTrips = 20;
    constexpr auto kWork = std::chrono::microseconds(100);
    const auto work = [kWork] {
      for (const auto end = Clock::now() + kWork; Clock::now() < end;) {
      }
    };
    const double trips_s = repeat(seconds, [&] {
                             for (int i = 0; i < kRoundTrips; ++i) {
                               stream_->launch(work);
                               stream_->record(*gone_);
                               other_->wait(*gone_);
                               other_->launch(work);
                               other_->record(*back_);
                               stream_->wait(*back_);
                             }
                             synchronize();
                           }).mean;
    hand_over_s_.add(trips_s / (2 * kRoundTrips) - std::chrono::duration<double>(kWork).count());
  }

  // Between pages and the device, one after another in a stream.
  void measure_copies(double seconds) {
    for (std::size_t i = 0; i < kCopySizes.size(); ++i) {
      const auto piece = static_cast<std::uint64_t>(kCopySizes[i]);
      const std::uint64_t pieces = std::clamp<std::uint64_t>(copied_bytes_ / piece, 1, kMostPieces);
      const double copies_s = repeat(seconds, [&] {
                                for (std::uint64_t k = 0; k < pieces; ++k) {
                                  stream_->copy(there_.data() + k * piece, first_.get() + k * piece,
                                                piece, device::CopyKind::kHostToDevice);
                                }
                                synchronize();
                              }).mean;
      copy_s_[i].add(copies_s / static_cast<double>(pieces));
    }
  }

  void synchronize() { stream_->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds)); }

  inline static const std::vector<std::int64_t> kCopySizes{4096, 65536, 1048576};
  static constexpr std::uint64_t kMostPieces = 1024;

  const kernels::host::Parallel parallel_{0};
  const std::uint64_t bytes_;
  const AlignedBytes first_;
  const AlignedBytes second_;
  const AlignedBytes third_;
  const std::uint64_t copied_bytes_;
  const device::RawBuffer there_;
  const std::unique_ptr<device::Stream> stream_;
  const std::unique_ptr<device::Stream> other_;
  const std::unique_ptr<device::Event> gone_;
  const std::unique_ptr<device::Event> back_;
  Samples triad_s_;
  Samples memcpy_s_;
  Samples launch_s_;
  Samples hand_over_s_;
  std::vector<Samples> copy_s_;
};

}  // namespace

planner::HardwareProfile measure_hardware(const MeasureOptions& options) {
  SLUICE_CHECK(options.device != nullptr && options.rounds > 0 && options.seconds_each > 0);
  DiskTrial disk(options.disk);  // first, because it fails most often
  DeviceTrial device(*options.device, options.array_bytes);
  KernelTrial kernels(options.kernel);
  LinkTrial links(options.links);
  for (int round = 0; round < options.rounds; ++round) {
    const auto begins = [&](const char* part) {
      if (!options.begins) return;
      options.begins("round " + std::to_string(round + 1) + " of " +
                     std::to_string(options.rounds) + ": " + part);
    };
    begins("storage");
    disk.measure_round(options.seconds_each);
    begins("memory, launches and copies");
    device.measure_round(options.seconds_each);
    begins("matrix products and updates");
    kernels.measure_round();
    if (!links.measures()) continue;
    begins("links between ranks");
    links.measure_round();
  }
  const HostTopology host = read_host_topology();
  planner::HardwareProfile profile;
  profile.backend = options.device->facts().backend;
  profile.cpu_name = host.cpu_name;
  profile.cores = std::max(host.cores, 1);
  disk.save(profile);
  device.save(profile);
  kernels.save(profile);
  if (links.measures()) links.save(profile);
  if (options.gpu.device != nullptr) {
    GpuOptions gpu = options.gpu;
    gpu.rounds = options.rounds;
    if (options.begins) options.begins("the GPU, " + std::to_string(gpu.rounds) + " rounds");
    profile.gpu = std::make_shared<const planner::HardwareProfile>(measure_gpu(gpu));
  }
  return profile;
}

}  // namespace sluice::doctor
