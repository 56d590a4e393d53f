// A segment of more elements than 31 bits count: wants 9 GiB of memory and some seconds, so it does
// not run by default (label long).
#include "tests/kernels/host_backend.hpp"
#include "tests/kernels/optimizer/sparse_memory.hpp"

namespace sluice::kernels::host {
namespace {

// One segment of 2^31 + 4,097 elements: 8 GiB of weights are written.
TEST(LargeUpdate, TakesOneSegmentOfMoreThan2To31Elements) {
  constexpr std::int64_t kElems = (std::int64_t{1} << 31) + 4097;
  const SparseMemory grads(static_cast<std::size_t>(kElems) * 2),
      weights(static_cast<std::size_t>(kElems) * 4);
  ASSERT_TRUE(grads.whole() && weights.whole());
  for (std::int64_t i = 0; i < kElems; i += 65537) grads.as<bf16>()[i] = bf16_from_float(2.0f);
  grads.as<bf16>()[kElems - 1] = bf16_from_float(2.0f);
  OptimizerOptions options;
  options.rule = OptimizerRule::kSgd;
  options.momentum = 0;
  options.weight = DType::kF32;
  UpdateBuffers buffers;
  buffers.grad = grads.as<bf16>();
  buffers.weight = weights.as<float>();
  buffers.elems = kElems;
  UpdateScalars scalars;
  scalars.lr = 0.5f;
  const ParameterSegment whole[] = {{0, kElems}};
  run_update(*make_host_kernels({.threads = 0}), options, buffers, whole, scalars);
  std::int64_t changed = 0;
  for (std::int64_t i = 0; i < kElems; ++i) {
    const float w = weights.as<float>()[i];
    if (w == 0) continue;
    ++changed;
    ASSERT_EQ(w, -1.0f) << i;
    ASSERT_TRUE(i % 65537 == 0 || i == kElems - 1) << i;
  }
  EXPECT_EQ(changed, kElems / 65537 + 2);
}

}  // namespace
}  // namespace sluice::kernels::host
