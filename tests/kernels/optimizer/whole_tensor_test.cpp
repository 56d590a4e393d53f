// Properties of every rule that looks at whole tensors.
#include <cstring>

#include "base/error.hpp"
#include "kernels/block8.hpp"
#include "kernels/split_master.hpp"
#include "kernels/stochastic_rounding.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

class WholeTensorRule : public ::testing::TestWithParam<OptimizerRule> {
 protected:
  TensorChunk chunk_of(const std::vector<TensorView>& shapes) const {
    OptimizerOptions options;
    options.rule = GetParam();
    options.weight = DType::kF32;
    return {options, DType::kF32, DType::kF32, shapes, 5};
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, WholeTensorRule,
                         ::testing::Values(OptimizerRule::kAdafactor, OptimizerRule::kSm3,
                                           OptimizerRule::kMuon),
                         [](const auto& rule) {
                           return std::string(optimizer_rule_name(rule.param));
                         });

TEST_P(WholeTensorRule, RefusesSegmentsThatAreNoWholeTensors) {
  TensorChunk chunk = chunk_of({{33, 7, true}, {1, 50, false}});
  const TensorChunk before = chunk;
  const auto refused = [&](const auto& change) {
    std::vector<ParameterSegment> segments = chunk.segments;
    change(segments[0]);
    EXPECT_THROW(chunk.update(Parallel(1), scalars_of(1), segments), InternalError);
    // The segments are refused, not the workspace alone.
    const Parallel parallel(1);
    const Gemm gemm(parallel, Bf16Gemm::kViaF32);
    EXPECT_THROW(
        update(parallel, gemm, chunk.options, chunk.buffers(), segments, scalars_of(1), nullptr),
        InternalError);
  };
  refused([](ParameterSegment& segment) { --segment.end; });
  refused([](ParameterSegment& segment) { segment.end -= 7; });
  refused([](ParameterSegment& segment) { ++segment.begin; });
  refused([](ParameterSegment& segment) { segment.tensor = {}; });
  refused([](ParameterSegment& segment) { segment.tensor.rows = -33; });
  refused([](ParameterSegment& segment) {
    segment.tensor.rows = segment.tensor.cols = std::int64_t{1} << 32;
    segment.end = segment.begin;
  });
  EXPECT_TRUE(chunk == before);
}

TEST_P(WholeTensorRule, OnlyDecaysWhereAllGradientsAreZero) {
  TensorChunk chunk = chunk_of({{33, 7, true}, {1, 300, false}, {40, 30, false}, {5, 1, true}});
  TensorChunk want = chunk;
  chunk.set_grad(std::vector<float>(static_cast<std::size_t>(chunk.elems)));
  chunk.update(Parallel(2), scalars_of(1));
  for (const ParameterSegment& segment : want.segments) {
    const float decay = scalars_of(1).lr * segment.lr_scale * segment.weight_decay;
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      want.set_master(i, want.master_at(i) - decay * want.master_at(i));
    }
  }
  EXPECT_TRUE(chunk == want);
}

TEST_P(WholeTensorRule, ChangesNothingWithoutSegments) {
  TensorChunk chunk = chunk_of({{33, 7, true}});
  const TensorChunk before = chunk;
  chunk.update(Parallel(2), scalars_of(1), {});
  EXPECT_TRUE(chunk == before);
}

TEST_P(WholeTensorRule, WorkspaceDependsOnShapesOnlyAndIsSmall) {
  const TensorChunk chunk = chunk_of({{1024, 2048, false}, {1, 2048, false}});
  std::vector<std::uint64_t> bytes;
  for (const int threads : {1, 2, 4}) {
    const Parallel parallel(threads);
    const Gemm gemm(parallel, Bf16Gemm::kViaF32);
    bytes.push_back(update_workspace_bytes(gemm, chunk.options, chunk.segments));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[0], bytes[2]);
  // Partial results of rows and columns: at most 1/30 of the elements here.
  EXPECT_LT(bytes[0], 1024u * 2048u * 4u / 30u);
}

// A first moment in a format narrower than fp32.
class NarrowMoment {
 public:
  NarrowMoment(DType format, const TensorChunk& chunk)
      : format_(format), bytes_(bytes_of(format, static_cast<std::uint64_t>(chunk.elems))) {}

  void* data() { return bytes_.data(); }
  // Into the chunk's, for every element of a tensor.
  void widen_to(TensorChunk& chunk) const {
    std::vector<float> values(static_cast<std::size_t>(chunk.elems));
    if (format_ == DType::kBlock8) {
      block8_decode_state(Block8Map::kMoment1, bytes_.data(), values.size(), values.data());
    } else {
      for (std::size_t i = 0; i < values.size(); ++i) {
        bf16 number;
        std::memcpy(&number, bytes_.data() + 2 * i, 2);
        values[i] = to_float(number);
      }
    }
    for_elements(chunk,
                 [&](const ParameterSegment&, std::size_t i) { chunk.moment1.set(i, values[i]); });
  }
  // Expects the step's fp32 moments, rounded to the narrow format.
  void expect_rounded(const TensorChunk& chunk, std::int64_t step) const {
    std::vector<float> values(static_cast<std::size_t>(chunk.elems));
    NarrowMoment want(format_, chunk);
    for_elements(chunk, [&](const ParameterSegment& segment, std::size_t i) {
      values[i] = chunk.moment1[i];
      const std::uint64_t key = segment.first_key + i - static_cast<std::size_t>(segment.begin);
      const bf16 number =
          bf16_stochastic(values[i], rounding_noise(chunk.options.seed, step, key, 1));
      if (format_ == DType::kBF16) std::memcpy(want.bytes_.data() + 2 * i, &number, 2);
    });
    if (format_ == DType::kBlock8) {
      block8_encode_state(Block8Map::kMoment1, values.data(), values.size(), want.bytes_.data());
    }
    EXPECT_TRUE(bytes_ == want.bytes_) << step;
  }

 private:
  template <class Body>
  static void for_elements(const TensorChunk& chunk, const Body& body) {
    for (const ParameterSegment& segment : chunk.segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        body(segment, static_cast<std::size_t>(i));
      }
    }
  }

  DType format_;
  std::vector<std::uint8_t> bytes_;
};

// A step on a split master and narrow moments is the fp32 step between two conversions.
TEST_P(WholeTensorRule, StatesOfEveryFormatTakeTheStepsOfFp32) {
  for (const DType format : {DType::kBF16, DType::kBlock8}) {
    TensorChunk wide({.rule = GetParam(), .seed = 77}, DType::kBF16, DType::kF32,
                     {{130, 33, true}, {1, 2300}, {65, 2049}, {3, 5}}, 6);
    TensorChunk narrow = wide;
    narrow.options.split_master = true;
    narrow.options.moments = format;
    NarrowMoment moment(format, wide);
    std::vector<std::int16_t> remainders(static_cast<std::size_t>(wide.elems));
    for (std::size_t i = 0; i < remainders.size(); ++i) {
      remainders[i] = split_master(wide.master[i]).remainder;
    }
    for (int step = 1; step <= 3; ++step) {
      wide.set_grad(normal_floats(wide.elems, static_cast<unsigned>(step), 1e-2f));
      const Parallel parallel(2);
      if (wide.buffers().moment1 != nullptr) moment.widen_to(wide);
      wide.update(parallel, scalars_of(step));
      UpdateBuffers buffers = narrow.buffers();
      buffers.grad = wide.grad.data();
      buffers.master = remainders.data();
      if (buffers.moment1 != nullptr) buffers.moment1 = moment.data();
      const Gemm gemm(parallel, Bf16Gemm::kViaF32);
      GuardedWorkspace workspace(update_workspace_bytes(gemm, narrow.options, wide.segments));
      update(parallel, gemm, narrow.options, buffers, wide.segments, scalars_of(step),
             workspace.data());
      EXPECT_TRUE(narrow.weight == wide.weight && narrow.moment2 == wide.moment2) << step;
      for (std::size_t i = 0; i < remainders.size(); ++i) {
        bf16 weight;
        std::memcpy(&weight, static_cast<const std::byte*>(narrow.weight.data()) + 2 * i, 2);
        ASSERT_EQ(join_master({weight, remainders[i]}), wide.master[i]) << step << " " << i;
      }
      if (buffers.moment1 != nullptr) moment.expect_rounded(wide, step);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
