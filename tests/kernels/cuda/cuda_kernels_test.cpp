// The GPU's kernels as one object: their stream, their context, and their results compared with the
// host's. The contract has the values of each method.
#include "kernels/backend/cuda_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"
#include "tests/contract/attention_contract.hpp"
#include "tests/contract/attention_part_contract.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"
#include "tests/kernels/host_backend.hpp"
#ifdef SLUICE_CUDA_EMULATION
#include "kernels/cuda/simt.cuh"
#include "tests/support/cuda_driver/simulator.hpp"
#endif

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::HostBackend;
using host::rounding_of;

// The emulated GPU runs only code that we compile, so no library.
#ifdef SLUICE_CUDA_EMULATION
constexpr CudaLibraries kLibraries = CudaLibraries::kNone;
using Backends = ::testing::Types<OwnCuda>;
#else
constexpr CudaLibraries kLibraries = CudaLibraries::kInstalled;
using Backends = ::testing::Types<OwnCuda, InstalledCuda>;
#endif

template <class Backend>
class BesideTheHost : public sluice::testing::KernelsContract<Backend> {
 protected:
  std::unique_ptr<Kernels> host_ = HostBackend::make();
};
TYPED_TEST_SUITE(BesideTheHost, Backends);

TYPED_TEST(BesideTheHost, HeadsAgree) {
  for (const DType dtype : sluice::testing::kActDTypes) {
    const sluice::testing::HeadBatch in({40, 24, 300, dtype});
    const auto got = sluice::testing::run_head<TypeParam>(this->kernels(), in);
    const auto want = sluice::testing::run_head<HostBackend>(*this->host_, in);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 2e-6 * std::abs(want.loss_sum));
    const double gradient = 4e-5 + (dtype == DType::kF32 ? 0 : 4 * rounding_of(dtype));
    const auto allowed = [&](double at) { return gradient * (std::abs(at) + 0.05 * 0.125); };
    sluice::testing::expect_near(got.dx, doubles(want.dx), allowed, "dx");
    sluice::testing::expect_near(got.dw, doubles(want.dw), allowed, "dw");
  }
}

TYPED_TEST(BesideTheHost, AttentionAgrees) {
  for (AttentionShape s : {AttentionShape{2, 20, 4, 2, 16}, AttentionShape{2, 100, 4, 2, 32}}) {
    for (const DType dtype : sluice::testing::kActDTypes) {
      s.dtype = dtype;
      const DTypeArray qkv(dtype, host::normal_floats(sluice::testing::qkv_elems(s), 11));
      const DTypeArray dout(dtype, host::normal_floats(sluice::testing::out_elems(s), 12));
      const auto got = sluice::testing::attend<TypeParam>(this->kernels(), s, qkv);
      const auto want = sluice::testing::attend<HostBackend>(*this->host_, s, qkv);
      const auto grad =
          sluice::testing::attend_backward<TypeParam>(this->kernels(), s, dout, qkv, want);
      const auto host_grad =
          sluice::testing::attend_backward<HostBackend>(*this->host_, s, dout, qkv, want);
      // Two roundings of the largest result forward, four backward.
      const auto expect_near = [&](const DTypeArray& a, const DTypeArray& b, double roundings) {
        const reference::Doubles values = doubles(b);
        double largest = 0.0;
        for (const double value : values) largest = std::max(largest, std::abs(value));
        const double coarse = roundings * rounding_of(dtype) * largest;
        sluice::testing::expect_near(
            a, values,
            [&](double at) { return dtype == DType::kF32 ? 1e-5 * (1.0 + std::abs(at)) : coarse; },
            dtype_name(dtype).data());
      };
      expect_near(got.out, want.out, 2.0);
      expect_near(grad, host_grad, 4.0);
    }
  }
}

// Both sides are fp32 until the caller rounds.
TYPED_TEST(BesideTheHost, PartsOfAttentionAgree) {
  for (const DType dtype : sluice::testing::kActDTypes) {
    const sluice::testing::Parts parts{{1, 60, 4, 2, 16, dtype}, 28};
    const DTypeArray qkv(dtype, host::normal_floats(sluice::testing::qkv_elems(parts.shape), 13));
    const DTypeArray dout(dtype, host::normal_floats(sluice::testing::out_elems(parts.shape), 14));
    const auto near = [](double at) { return 1e-5 * (1.0 + std::abs(at)); };
    const auto got =
        sluice::testing::attend_in_parts<TypeParam>(this->kernels(), parts, qkv, {0, 1, 2});
    const auto want =
        sluice::testing::attend_in_parts<HostBackend>(*this->host_, parts, qkv, {0, 1, 2});
    sluice::testing::expect_near(got.out, doubles(want.out), near, "out");
    sluice::testing::expect_near(got.lse, doubles(want.lse), near, "lse");
    const auto saved = sluice::testing::saved_of(parts, want);
    sluice::testing::expect_near(sluice::testing::attend_backward_in_parts<TypeParam>(
                                     this->kernels(), parts, dout, qkv, saved),
                                 doubles(sluice::testing::attend_backward_in_parts<HostBackend>(
                                     *this->host_, parts, dout, qkv, saved)),
                                 near, "gradients");
  }
}

class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const device::CudaSearch search = device::find_cuda_devices();
    if (search.devices.empty()) GTEST_SKIP() << search.missing;
    device_ = device::make_cuda_device({.capacity_bytes = 1 * kGiB});
    kernels_ = make_cuda_kernels({.ordinal = 0, .libraries = kLibraries});
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Kernels> kernels_;
};

#ifdef SLUICE_CUDA_EMULATION
__global__ void wait_kernel(const std::atomic<bool>* open) {
  while (!open->load()) std::this_thread::yield();
}

// While an earlier kernel of the stream runs, a call returns and changes nothing.
// NOLINTNEXTLINE(readability-function-size): one table of all calls
TEST_F(CudaKernelsTest, EveryCallIsQueuedOnTheStream) {
  constexpr DType kType = DType::kBF16;
  constexpr std::size_t kBytes = 1 << 16;
  DeviceBytes input(kBytes), output(kBytes), work(64 << 20);
  std::memset(input.data(), 0x3f, kBytes);  // 0.75 or so in every dtype
  const std::vector<std::int32_t> tokens(8);
  const void* const in = input.data();
  void* const out = output.data();
  const auto* const floats = static_cast<const float*>(in);
  auto* const sums = static_cast<float*>(out);
  auto* const wide = static_cast<double*>(out);
  const GemmShape product{8, 8, 8, false, true, kType, kType};
  const NormShape norm{4, 16, false, 1e-5f, kType};
  const AttentionShape attention{1, 4, 2, 1, 8, kType};
  const AttentionPart part{4, 4, 2, 1, 8, true, 4, kType};
  const HeadShape head{4, 8, 8, kType};
  const Kernels::Block blocks[] = {{0, 64}};
  const ParameterSegment segment{.begin = 0, .end = 64, .tensor = {8, 8, true}};
  UpdateBuffers buffers{.grad = in, .weight = out, .master = sums + 64, .moment1 = sums + 128};
  buffers.moment2 = sums + 256;
  buffers.elems = 64;
  Kernels& k = *kernels_;
  void* const w = work.data();
  std::vector<std::pair<const char*, std::function<void()>>> calls{
      {"gemm", [&] { k.gemm(product, in, in, in, out, w); }},
      {"gemm_gelu", [&] { k.gemm_gelu(product, in, in, in, out, sums + 64, w); }},
      {"gemm_gelu_backward", [&] { k.gemm_gelu_backward(product, in, in, in, out, w); }},
      {"zero", [&] { k.zero(out, 64); }},
      {"column_sum", [&] { k.column_sum(in, out, 4, 16, kType); }},
      {"norm_forward", [&] { k.norm_forward(norm, in, in, in, out, sums + 64, sums + 128); }},
      {"norm_backward_input",
       [&] { k.norm_backward_input(norm, in, in, in, floats, floats, nullptr, out); }},
      {"norm_backward_weight",
       [&] { k.norm_backward_weight(norm, in, in, floats, floats, out, sums + 64); }},
      {"add", [&] { k.add(in, in, out, 64, kType); }},
      {"gelu_forward", [&] { k.gelu_forward(in, out, 64, kType); }},
      {"gelu_backward", [&] { k.gelu_backward(in, in, out, 64, kType); }},
      {"swiglu_forward", [&] { k.swiglu_forward(in, out, 4, 16, kType); }},
      {"swiglu_backward", [&] { k.swiglu_backward(in, in, out, 4, 16, kType); }},
      {"rope", [&] { k.rope(attention, 1e4f, false, out); }},
      {"attention_forward", [&] { k.attention_forward(attention, in, out, sums + 64, w); }},
      {"attention_backward", [&] { k.attention_backward(attention, in, in, in, floats, out, w); }},
      {"attention_part_forward",
       [&] { k.attention_part_forward(part, in, in, true, sums, sums + 64, w); }},
      {"attention_part_backward",
       [&] { k.attention_part_backward(part, in, in, in, in, floats, sums, sums + 64, w); }},
      {"embedding_forward",
       [&] { k.embedding_forward(tokens.data(), all_tokens(8), in, in, out, 8, 4, 8, kType); }},
      {"embedding_backward",
       [&] {
         k.embedding_backward(tokens.data(), all_tokens(8), in, out, sums + 64, 8, 4, 4, 8, kType,
                              w);
       }},
      {"head_forward",
       [&] { k.head_forward(head, in, in, tokens.data(), 1, wide, sums + 64, sums + 128, w); }},
      {"head_backward_weight",
       [&] { k.head_backward_weight(head, in, in, tokens.data(), 1, floats, out, w); }},
      {"accumulate", [&] { k.accumulate(sums, in, kType, false, 64); }},
      {"fold", [&] { k.fold(out, in, kType, 64); }},
      {"squared_norm_blocks", [&] { k.squared_norm_blocks(in, kType, DType::kF32, blocks, wide); }},
      {"cast", [&] { k.cast(in, DType::kF32, out, kType, true, 64); }}};
  for (std::size_t rule = 0; rule < kOptimizerRuleCount; ++rule) {
    OptimizerOptions options;
    options.rule = static_cast<OptimizerRule>(rule);
    if (options.rule == OptimizerRule::kCaller) continue;  // no kernel updates its tensors
    UpdateBuffers of_rule = buffers;
    const auto absent = [&](StateKind kind) {
      return state_layout(options, kind).extent == StateExtent::kAbsent;
    };
    if (absent(StateKind::kMoment1)) of_rule.moment1 = nullptr;
    if (absent(StateKind::kMoment2)) of_rule.moment2 = nullptr;
    calls.emplace_back("update", [=, &k, &segment] {
      k.update(options, of_rule, {&segment, 1}, {1e-2f, 0.5f, 3}, w);
    });
  }
  const auto stream = device_->create_stream("calls");
  k.set_stream(stream->native());
  for (const auto& [name, call] : calls) {
    std::memset(out, 0x3e, kBytes);
    const std::vector<std::uint8_t> before(kBytes, 0x3e);
    const auto unchanged = [&] { return std::memcmp(out, before.data(), kBytes) == 0; };
    std::atomic<bool> open{false};
    stream->launch([&] {
      launch(static_cast<cudaStream_t>(stream->native()), 1, 1, 0, &wait_kernel, &open);
      call();
    });
    EXPECT_TRUE(unchanged()) << name;
    open = true;
    stream->synchronize(Deadline::after_seconds(60));
    EXPECT_FALSE(unchanged()) << name;
  }
}

// Libraries' handles must not outlive it, and kernels may outlive the device.
TEST_F(CudaKernelsTest, HoldTheirContext) {
  const sluice::testing::CudaSimulator simulator;
  device_.reset();
  EXPECT_EQ(simulator.objects().contexts, 1u);
  kernels_.reset();
  EXPECT_EQ(simulator.objects().contexts, 0u);
}
#endif

TEST_F(CudaKernelsTest, NameTheArithmeticBehindTheirBits) {
  const std::string arithmetic = kernels_->arithmetic();
  EXPECT_EQ(arithmetic.rfind("cuda/", 0), 0u) << arithmetic;
  EXPECT_NE(arithmetic.find("/sm_"), std::string::npos) << arithmetic;
}

TEST_F(CudaKernelsTest, AreRefusedForAGpuThatIsNotThere) {
  EXPECT_THROW(make_cuda_kernels({.ordinal = 99}), DeviceError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
