// What holds for every rule that looks at whole tensors.
#include "base/error.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::host {
namespace {

class WholeTensorRule : public testing::TestWithParam<OptimizerRule> {
 protected:
  TensorChunk chunk_of(const std::vector<TensorView>& shapes) const {
    OptimizerOptions options;
    options.rule = GetParam();
    options.weight = DType::kF32;
    return {options, DType::kF32, DType::kF32, shapes, 5};
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, WholeTensorRule,
                         testing::Values(OptimizerRule::kAdafactor, OptimizerRule::kSm3,
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
    // Not only the workspace is refused.
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

TEST_P(WholeTensorRule, DoesNothingToNothing) {
  TensorChunk chunk = chunk_of({{33, 7, true}});
  const TensorChunk before = chunk;
  chunk.update(Parallel(2), scalars_of(1), {});
  EXPECT_TRUE(chunk == before);
}

TEST_P(WholeTensorRule, WorkspaceIsThatOfTheShapesAndFarBelowTheTensors) {
  const TensorChunk chunk = chunk_of({{1024, 2048, false}, {1, 2048, false}});
  std::vector<std::uint64_t> bytes;
  for (const int threads : {1, 2, 4}) {
    const Parallel parallel(threads);
    const Gemm gemm(parallel, Bf16Gemm::kViaF32);
    bytes.push_back(update_workspace_bytes(gemm, chunk.options, chunk.segments));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[0], bytes[2]);
  // A number for each line that crosses a tile: 1/64 + 1/1,024 of the elements, and a little.
  EXPECT_LT(bytes[0], 1024u * 2048u * 4u / 40u);
}

}  // namespace
}  // namespace sluice::host
