// Rules that update each element alone: an update on a GPU is the host's, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "tests/kernels/cuda/update_chunk.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::normal_floats;

std::vector<OptimizerOptions> all_rules() {
  std::vector<OptimizerOptions> rules(6);
  rules[0].rule = OptimizerRule::kAdamW;
  rules[1].rule = OptimizerRule::kAdam;
  for (int i = 2; i < 5; ++i) rules[static_cast<std::size_t>(i)].rule = OptimizerRule::kSgd;
  rules[2].momentum = 0;
  rules[4].nesterov = true;
  rules[5].rule = OptimizerRule::kLion;
  for (OptimizerOptions& rule : rules) rule.seed = 0x123456789abcdefull;
  return rules;
}

UpdateScalars scalars_of(std::int64_t step) {
  UpdateScalars scalars;
  scalars.lr = 3e-4f;
  scalars.grad_scale = 0.731f;
  scalars.step = step;
  return scalars;
}

// Gaps, odd bounds, an empty segment, keys that are no multiples of anything and pass 2^36 (Philox
// counters beyond 32 bits).
constexpr std::int64_t kElems = 8192;
std::vector<ParameterSegment> segments_of(const UpdateFormats& formats) {
  const bool blocks = formats.options.moments == DType::kBlock8;
  return {{0, 1001, 0.1f, 1.0f, 5},
          {1024, 1024, 0.5f},
          {1152, 5001, 0.01f, 0.5f, (std::uint64_t{1} << 36) + 77},
          {blocks ? 5120 : 5001, 8191, 0.0f, 2.0f, 1000003}};
}

UpdateChunk start_of(const UpdateFormats& formats, std::int64_t elems,
                     std::span<const ParameterSegment> segments) {
  UpdateChunk chunk(formats, elems);
  const std::vector<float> w = kernels::host::normal_floats(elems, 12),
                           m = kernels::host::normal_floats(elems, 13, 1e-3f);
  std::vector<float> weights(w.size()), first(w.size()), second(w.size());
  for (const ParameterSegment& segment : segments) {
    for (auto i = static_cast<std::size_t>(segment.begin);
         i < static_cast<std::size_t>(segment.end); ++i) {
      weights[i] = w[i];
      first[i] = m[i];
      second[i] = m[i] * m[i] * 0.5f;
    }
  }
  chunk.set_weights(weights);
  chunk.set_moments(first, second);
  return chunk;
}

std::vector<float> gradient(std::int64_t elems, unsigned seed) {
  return kernels::host::normal_floats(elems, seed, 1e-2f);
}

// Zeros of both signs, denormals, infinities, NaNs, numbers that overflow when squared.
std::vector<float> special_gradient(std::int64_t elems) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> specials{0.0f,       -0.0f, 0x1p-149f, -0x1p-130f, 0x1p-126f, kInfinity,
                                    -kInfinity, NAN,   -NAN,      0x1p100f,   -0x1p127f, 0x1p-70f};
  std::vector<float> values = gradient(elems, 14);
  for (std::size_t i = 0; i < values.size(); i += 7) values[i] = specials[i / 7 % specials.size()];
  return values;
}

class UpdateRules : public CudaKernelTest, public ::testing::WithParamInterface<OptimizerOptions> {
 protected:
  // Both sides, step by step, from the same start.
  void compare(UpdateChunk start, std::span<const ParameterSegment> segments,
               const std::vector<std::vector<float>>& gradients) {
    UpdateChunk want = start;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i) + 1;
      want.set_grad(gradients[i]);
      start.set_grad(gradients[i]);
      want.update_on_host(*host_, segments, scalars_of(step));
      start.update_on_device(*gemm_, segments, scalars_of(step));
      start.expect_same(want);
      if (HasFatalFailure()) return;
    }
  }

  std::unique_ptr<Kernels> host_ = make_host_kernels({.threads = 1});
  std::unique_ptr<GemmBackend> gemm_ = make_plain_gemm();
};
INSTANTIATE_TEST_SUITE_P(Rules, UpdateRules, ::testing::ValuesIn(all_rules()),
                         [](const auto& test) {
                           const OptimizerOptions& rule = test.param;
                           std::string name(optimizer_rule_name(rule.rule));
                           if (rule.momentum == 0) name += "Plain";
                           return rule.nesterov ? name + "Nesterov" : name;
                         });

TEST_P(UpdateRules, IsTheHostsUpdateInEveryFormat) {
  for (const UpdateFormats& formats : all_formats(GetParam(), true)) {
    SCOPED_TRACE(format_name(formats));
    const std::vector<ParameterSegment> segments = segments_of(formats);
    compare(start_of(formats, kElems, segments), segments,
            {gradient(kElems, 1), gradient(kElems, 2), gradient(kElems, 3)});
    if (HasFatalFailure()) return;
  }
}

TEST_P(UpdateRules, TreatsSpecialNumbersAsTheHostDoes) {
  for (const UpdateFormats& formats : all_formats(GetParam(), true)) {
    SCOPED_TRACE(format_name(formats));
    const std::vector<ParameterSegment> segments = segments_of(formats);
    compare(start_of(formats, kElems, segments), segments,
            {special_gradient(kElems), gradient(kElems, 2)});
    if (HasFatalFailure()) return;
  }
}

// More segments than one launch's parameters hold; each shorter than a warp's share.
TEST_P(UpdateRules, TakesMoreSegmentsThanALaunchHolds) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    UpdateFormats formats{GetParam(), DType::kBF16, DType::kF32};
    formats.options.split_master = true;
    formats.options.moments = moments;
    std::vector<ParameterSegment> segments;
    for (std::int64_t i = 0; i < 200; ++i) {
      segments.push_back({i * 40 + i % 3, i * 40 + 37, 0.01f * static_cast<float>(i % 5), 1.0f,
                          static_cast<std::uint64_t>(i * 1001)});
    }
    compare(start_of(formats, kElems, segments), segments, {gradient(kElems, 4)});
    if (HasFatalFailure()) return;
  }
}

TEST_P(UpdateRules, RefusesTheSameUpdatesAsTheHost) {
  const UpdateFormats formats{GetParam(), DType::kF32, DType::kF32};
  const std::vector<ParameterSegment> segments{{0, 100}, {50, 200}};
  UpdateChunk chunk(formats, kElems);
  EXPECT_THROW(chunk.update_on_device(*gemm_, segments, scalars_of(1)), InternalError);
  const std::vector<ParameterSegment> outside{{0, kElems + 1}};
  EXPECT_THROW(chunk.update_on_device(*gemm_, outside, scalars_of(1)), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
