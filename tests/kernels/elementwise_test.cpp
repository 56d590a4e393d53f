// The arithmetic that the host's kernels keep. The contract has their values.
#include "kernels/host/elementwise.hpp"

#include <gtest/gtest.h>

#include "tests/support/dtype_array.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sluice::kernels::host {
namespace {

#if defined(__SSE2__)
// The caller may run with denormals flushed (MXCSR FTZ, DAZ) or with another rounding.
TEST(IeeeArithmetic, KeepsDenormalsWhateverTheCallerHasSet) {
  const std::int64_t elems = 100000;
  std::vector<float> small(static_cast<std::size_t>(elems), 3e-42f);
  const DTypeArray grad(DType::kF32, small);
  for (const int threads : {1, 3}) {
    const Parallel parallel(threads);
    DTypeArray sum = grad;
    const unsigned before = _mm_getcsr();
    const unsigned flushed = before | 0x8040u | 0x2000u;  // FTZ, DAZ, rounding down
    _mm_setcsr(flushed);
    accumulate(parallel, static_cast<float*>(sum.data()), grad.data(), DType::kF32, false, elems);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0xffc0u, flushed & 0xffc0u);
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 3e-42f + 3e-42f) << i;
  }
}
#endif

}  // namespace
}  // namespace sluice::kernels::host
