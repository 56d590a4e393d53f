#include "tools/doctor/measure_gpu.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/rng.hpp"
#include "kernels/optimizer.hpp"
#include "tools/doctor/aligned_bytes.hpp"
#include "tools/doctor/samples.hpp"

namespace sluice::doctor {
namespace {

Deadline deadline() {
  return Deadline::after_seconds(kDefaultDeadlineSeconds);
}

class GpuTrial {
 public:
  explicit GpuTrial(const GpuOptions& options)
      : options_(options),
        device_(*options.device),
        kernels_(*options.kernels),
        bytes_(options.array_bytes),
        host_(make_bytes(bytes_)),
        registered_(device_.register_host(host_.get(), bytes_)),
        memory_(device_.allocate(device_bytes())),
        stream_(device_.create_stream("doctor")),
        other_(device_.create_stream("doctor2")),
        begin_(device_.create_event()),
        end_(device_.create_event()),
        gone_(device_.create_event()),
        back_(device_.create_event()) {
    run([this] { kernels_.zero(memory_.data(), memory_.bytes()); });
    // Fill the matrices with random bf16 numbers in [-0.5, 0.5), because a GPU multiplies zeros
    // faster. The fp32 products read the same bytes as fp32 numbers.
    const CounterRng random(1, stream_of("doctor"));
    auto* const numbers = reinterpret_cast<bf16*>(host_.get());
    for (std::uint64_t i = 0; i < bytes_ / sizeof(bf16); ++i) {
      numbers[i] = bf16_from_float(static_cast<float>(random.uniform(i) - 0.5));
    }
    stream_->synchronize(deadline());
  }

  void measure_round() {
    measure_memory();
    measure_products();
    measure_update();
    measure_launches();
  }

  void save(planner::HardwareProfile& profile) const {
    const auto size = static_cast<double>(options_.gemm_size);
    const auto bytes = static_cast<double>(bytes_);
    profile.backend = device_.facts().backend;
    profile.cpu_name = device_.facts().name;
    profile.cores = 1;
    profile.core_scaling = 1.0;
    profile.memory_bandwidth_bytes_per_s = 2 * bytes / copy_s_.median();
    profile.single_core_copy_bytes_per_s = bytes / std::max(up_s_.median(), down_s_.median());
    profile.gemm_f32_flops_per_s = 2 * size * size * size / gemm_s_[0].median();
    profile.gemm_bf16_flops_per_s = 2 * size * size * size / gemm_s_[1].median();
    profile.adam_params_per_s = static_cast<double>(update_elems()) / update_s_.median();
    profile.launch_overhead_s = launch_s_.median();
    profile.hand_over_s = std::max(hand_over_s_.median(), profile.launch_overhead_s);
  }

 private:
  // 16-bit gradients and weights, fp32 master and moments: 16 bytes a parameter.
  std::int64_t update_elems() const { return static_cast<std::int64_t>(bytes_ / 8 / 4096 * 4096); }
  std::uint64_t matrix_bytes() const {
    const auto size = static_cast<std::uint64_t>(options_.gemm_size);
    return round_up(size * size * sizeof(float), kTensorAlignmentBytes);
  }
  kernels::GemmShape product(DType dtype) const {
    const std::int64_t size = options_.gemm_size;
    return {size, size, size, false, true, dtype, dtype};
  }
  std::uint64_t device_bytes() const {
    const std::uint64_t workspace = std::max(kernels_.gemm_workspace_bytes(product(DType::kF32)),
                                             kernels_.gemm_workspace_bytes(product(DType::kBF16)));
    return std::max(2 * bytes_, 3 * matrix_bytes() + workspace);
  }

  void run(std::function<void()> work) {
    stream_->launch([this, queued = std::move(work)] {
      kernels_.set_stream(stream_->native());
      queued();
    });
  }
  // Seconds of one of `repeats` calls, by the device's own clock; one more goes before.
  double seconds_of(const std::function<void()>& queue) {
    queue();
    stream_->record(*begin_);
    for (int i = 0; i < options_.repeats; ++i) queue();
    stream_->record(*end_);
    end_->synchronize(deadline(), "a measurement on the device");
    const auto taken_ns = static_cast<double>(end_->time_ns() - begin_->time_ns());
    return std::max(taken_ns, 1.0) * 1e-9 / options_.repeats;
  }

  void measure_memory() {
    std::byte* const data = memory_.data();
    copy_s_.add(seconds_of(
        [&] { stream_->copy(data + bytes_, data, bytes_, device::CopyKind::kDeviceToDevice); }));
    up_s_.add(seconds_of(
        [&] { stream_->copy(data, host_.get(), bytes_, device::CopyKind::kHostToDevice); }));
    down_s_.add(seconds_of(
        [&] { stream_->copy(host_.get(), data, bytes_, device::CopyKind::kDeviceToHost); }));
  }

  void measure_products() {
    std::byte* const a = memory_.data();
    std::byte* const b = a + matrix_bytes();
    std::byte* const c = b + matrix_bytes();
    for (std::uint64_t at = 0; at < 2 * matrix_bytes(); at += bytes_) {
      stream_->copy(a + at, host_.get(), std::min(bytes_, 2 * matrix_bytes() - at),
                    device::CopyKind::kHostToDevice);
    }
    constexpr std::array kTypes{DType::kF32, DType::kBF16};
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      gemm_s_[i].add(seconds_of([&] {
        run([=, this] { kernels_.gemm(product(kTypes[i]), a, b, nullptr, c, c + matrix_bytes()); });
      }));
    }
  }

  void measure_update() {
    const std::int64_t elems = update_elems();
    const auto part = static_cast<std::uint64_t>(elems) * sizeof(float);
    std::byte* const data = memory_.data();
    run([this] { kernels_.zero(memory_.data(), memory_.bytes()); });
    kernels::UpdateBuffers buffers;
    buffers.elems = elems;
    buffers.grad = data;
    buffers.weight = data + part / 2;
    buffers.master = data + part;
    buffers.moment1 = data + 2 * part;
    buffers.moment2 = data + 3 * part;
    kernels::ParameterSegment all;
    all.end = elems;
    update_s_.add(seconds_of([&] {
      run([this, buffers, all] { kernels_.update({}, buffers, {&all, 1}, {}, nullptr); });
    }));
  }

  // A kernel that does the least work.
  void measure_launches() {
    constexpr int kLaunches = 200;
    constexpr std::uint64_t kLeastBytes = 256;
    const auto least = [this] { kernels_.zero(memory_.data(), kLeastBytes); };
    launch_s_.add(seconds_of([&] {
                    for (int i = 0; i < kLaunches; ++i) run(least);
                  }) /
                  kLaunches);
    const double trip_s = seconds_of([&] {
      for (int i = 0; i < kLaunches / 2; ++i) {
        run(least);
        stream_->record(*gone_);
        other_->wait(*gone_);
        other_->launch([this] {
          kernels_.set_stream(other_->native());
          kernels_.zero(memory_.data(), kLeastBytes);
        });
        other_->record(*back_);
        stream_->wait(*back_);
      }
    });
    hand_over_s_.add(trip_s / kLaunches);
  }

  const GpuOptions options_;
  device::Device& device_;
  kernels::Kernels& kernels_;
  const std::uint64_t bytes_;
  const AlignedBytes host_;
  const device::HostRegistration registered_;
  const device::RawBuffer memory_;
  const std::unique_ptr<device::Stream> stream_;
  const std::unique_ptr<device::Stream> other_;
  const std::unique_ptr<device::Event> begin_;
  const std::unique_ptr<device::Event> end_;
  const std::unique_ptr<device::Event> gone_;
  const std::unique_ptr<device::Event> back_;
  Samples copy_s_;
  Samples up_s_;
  Samples down_s_;
  std::array<Samples, 2> gemm_s_;
  Samples update_s_;
  Samples launch_s_;
  Samples hand_over_s_;
};

}  // namespace

planner::HardwareProfile measure_gpu(const GpuOptions& options) {
  SLUICE_CHECK(options.device != nullptr && options.kernels != nullptr && options.rounds > 0);
  GpuTrial trial(options);
  for (int round = 0; round < options.rounds; ++round) trial.measure_round();
  planner::HardwareProfile profile;
  trial.save(profile);
  return profile;
}

}  // namespace sluice::doctor
