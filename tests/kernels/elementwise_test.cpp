#include "kernels/host/elementwise.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "tests/support/dtype_array.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sluice::kernels::host {
namespace {

// Around vectors, pieces of 32,768 elements and blocks of 4,096.
const std::int64_t kSizes[] = {0, 1, 7, 16, 33, 4096, 32768 + 5, 100003};

// Every sign, exponent and upper mantissa with the lower halves that rounding turns on: zeros,
// denormals, infinities and NaNs are among them.
std::vector<float> rounding_cases() {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return values;
}

std::uint16_t half_bits(const DTypeArray& array, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, array.bytes().data() + 2 * i, 2);
  return bits;
}

DTypeArray cast_to(const Parallel& parallel, const DTypeArray& in, DType out_type, bool weight) {
  DTypeArray out(out_type, static_cast<std::int64_t>(in.size()));
  cast(parallel, in.data(), in.type(), out.data(), out_type, weight,
       static_cast<std::int64_t>(in.size()));
  return out;
}

TEST(Cast, RoundsGradientsToEvenAndWeightsAway) {
  const std::vector<float> values = rounding_cases();
  const DTypeArray in(DType::kF32, values);
  for (const bool weight : {false, true}) {
    const DTypeArray out = same_bits_everywhere(
        [&](const Parallel& parallel) { return cast_to(parallel, in, DType::kBF16, weight); });
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bf16 want = weight ? bf16_weight_from_float(values[i]) : bf16_from_float(values[i]);
      wrong += half_bits(out, i) != want.bits;
    }
    EXPECT_EQ(wrong, 0u) << (weight ? "weights" : "gradients");
  }
}

// Lower halves at every place where fp16 may round: its last bit is fp32's bit 13, and up to ten
// bits higher in a subnormal.
std::vector<float> f16_rounding_cases() {
  std::vector<float> values = rounding_cases();
  for (std::uint32_t sign_and_exponent = 0; sign_and_exponent < 0x200u; ++sign_and_exponent) {
    for (std::uint32_t bit = 12; bit < 23; ++bit) {
      for (const std::uint32_t above : {0u, 1u, 2u, 3u}) {
        const std::uint32_t tie = ((above << (bit + 1)) | (1u << bit)) & 0x7fffffu;
        for (const std::uint32_t mantissa : {tie - 1, tie, tie + 1}) {
          values.push_back(std::bit_cast<float>((sign_and_exponent << 23) | mantissa));
        }
      }
    }
  }
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = to_float(f16{static_cast<std::uint16_t>(bits)});
    values.insert(values.end(), {value, std::nextafterf(value, 1e9f), std::nextafterf(value, 0)});
  }
  return values;
}

TEST(Cast, RoundsFp16ToEvenOnEveryTarget) {
  const std::vector<float> values = f16_rounding_cases();
  const DTypeArray in(DType::kF32, values);
  for (const bool weight : {false, true}) {
    const DTypeArray out = same_bits_everywhere(
        [&](const Parallel& parallel) { return cast_to(parallel, in, DType::kF16, weight); });
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += half_bits(out, i) != f16_from_float(values[i]).bits;
    }
    EXPECT_EQ(wrong, 0u) << (weight ? "weights" : "gradients");
  }
}

// All 65,536, in every place of a vector.
TEST(Cast, WidensEveryFp16Number) {
  DTypeArray narrow(DType::kF16, 0x10000 + 7);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(static_cast<std::uint8_t*>(narrow.data()) + 2 * i, &bits, 2);
  }
  const DTypeArray wide = same_bits_everywhere(
      [&](const Parallel& parallel) { return cast_to(parallel, narrow, DType::kF32, false); });
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, wide.bytes().data() + 4 * i, 4);
    const f16 value{static_cast<std::uint16_t>(i)};
    ASSERT_EQ(bits, std::bit_cast<std::uint32_t>(to_float(value))) << i;
  }
}

TEST(Cast, GoesFromOneSixteenBitTypeToTheOther) {
  const DTypeArray narrow(DType::kBF16, normal_floats(1003, 9, 1e-4f));
  const DTypeArray half = same_bits_everywhere(
      [&](const Parallel& parallel) { return cast_to(parallel, narrow, DType::kF16, false); });
  for (std::size_t i = 0; i < half.size(); ++i) {
    ASSERT_EQ(half_bits(half, i), f16_from_float(narrow[i]).bits) << i;
  }
}

TEST(Cast, WidensExactlyAndCopiesEqualTypes) {
  std::vector<float> values = rounding_cases();
  const DTypeArray narrow =
      cast_to(Parallel(1), DTypeArray(DType::kF32, values), DType::kBF16, true);
  const DTypeArray wide = same_bits_everywhere(
      [&](const Parallel& parallel) { return cast_to(parallel, narrow, DType::kF32, false); });
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, wide.bytes().data() + 4 * i, 4);
    ASSERT_EQ(bits, static_cast<std::uint32_t>(half_bits(narrow, i)) << 16);
  }
  EXPECT_TRUE(cast_to(Parallel(2), narrow, DType::kBF16, false) == narrow);
  EXPECT_TRUE(cast_to(Parallel(2), wide, DType::kF32, true) == wide);
}

TEST(Cast, RefusesOtherTypes) {
  std::int32_t in[4] = {};
  float out[4] = {};
  EXPECT_THROW(cast(Parallel(1), in, DType::kI32, out, DType::kF32, false, 4), InternalError);
}

class ElementwiseOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, ElementwiseOf,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& variant) {
                           return std::string(dtype_name(variant.param));
                         });

TEST_P(ElementwiseOf, AccumulateAddsInFp32ToTheBit) {
  for (const std::int64_t elems : kSizes) {
    const DTypeArray grad(GetParam(), normal_floats(elems, 1));
    const DTypeArray before(DType::kF32, normal_floats(elems, 2));
    for (const bool first : {false, true}) {
      const DTypeArray after = same_bits_everywhere([&](const Parallel& parallel) {
        DTypeArray sum = before;
        accumulate(parallel, static_cast<float*>(sum.data()), grad.data(), grad.type(), first,
                   elems);
        return sum;
      });
      for (std::size_t i = 0; i < grad.size(); ++i) {
        ASSERT_EQ(after[i], first ? grad[i] : before[i] + grad[i]) << i << " of " << elems;
      }
    }
  }
}

TEST_P(ElementwiseOf, FoldRoundsTheSumOnce) {
  for (const std::int64_t elems : kSizes) {
    const DTypeArray from(GetParam(), normal_floats(elems, 3));
    const DTypeArray before(GetParam(), normal_floats(elems, 4));
    const DTypeArray after = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray into = before;
      fold(parallel, into.data(), from.data(), GetParam(), elems);
      return into;
    });
    DTypeArray want(GetParam(), elems);
    for (std::size_t i = 0; i < from.size(); ++i) want.set(i, before[i] + from[i]);
    EXPECT_TRUE(after == want) << elems;
  }
}

// The documented order, element by element.
double norm_in_lanes(const DTypeArray& grad, const Kernels::Block& block, DType round_to) {
  double lanes[16] = {};
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    float value = grad[static_cast<std::size_t>(i)];
    if (grad.type() == DType::kF32) value = DTypeArray(round_to, std::vector{value})[0];
    lanes[(i - block.begin) % 16] += static_cast<double>(value) * value;
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

TEST_P(ElementwiseOf, SquaredNormKeepsItsDocumentedOrder) {
  const std::int64_t elems = 12 * 4096 + 77;
  std::vector<float> values = normal_floats(elems, 5, 1e-3f);
  values[17] = 1e-42f;  // a denormal
  const DTypeArray grad(GetParam(), values);
  std::vector<Kernels::Block> blocks;
  for (std::int64_t begin = 0; begin < elems; begin += 4096) {
    blocks.push_back({begin, std::min(elems, begin + 4096)});
  }
  blocks.push_back({100, 100});
  blocks.push_back({33, 50});
  for (const DType round : {DType::kF32, DType::kBF16, DType::kF16}) {
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      std::vector<double> partial(blocks.size(), -1.0);
      squared_norm_blocks(parallel, grad.data(), GetParam(), round, blocks, partial.data());
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        EXPECT_EQ(partial[b], norm_in_lanes(grad, blocks[b], round)) << name << " block " << b;
      }
    });
  }
  squared_norm_blocks(Parallel(1), grad.data(), GetParam(), DType::kF32, {}, nullptr);
}

TEST_P(ElementwiseOf, SquaredNormCarriesInfinityAndNan) {
  std::vector<float> values(64, 1.0f);
  values[3] = std::numeric_limits<float>::infinity();
  values[40] = std::numeric_limits<float>::quiet_NaN();
  const DTypeArray grad(GetParam(), values);
  const Kernels::Block blocks[] = {{0, 32}, {32, 64}};
  double partial[2];
  squared_norm_blocks(Parallel(1), grad.data(), GetParam(), DType::kBF16, blocks, partial);
  EXPECT_TRUE(std::isinf(partial[0]));
  EXPECT_TRUE(std::isnan(partial[1]));
}

// A fp32 sum of fp16 gradients that is too large for fp16 counts as an overflow.
TEST(SquaredNorm, OverflowsWhereRoundingDoes) {
  const DTypeArray grad(DType::kF32, std::vector<float>(40, 65520.0f));
  const Kernels::Block blocks[] = {{0, 17}, {17, 40}};
  on_every_target([&](const Parallel& parallel, const std::string& name) {
    double partial[2];
    squared_norm_blocks(parallel, grad.data(), DType::kF32, DType::kF16, blocks, partial);
    EXPECT_TRUE(std::isinf(partial[0]) && std::isinf(partial[1])) << name;
    squared_norm_blocks(parallel, grad.data(), DType::kF32, DType::kBF16, blocks, partial);
    EXPECT_TRUE(std::isfinite(partial[0]) && std::isfinite(partial[1])) << name;
  });
}

TEST_P(ElementwiseOf, ColumnSumIsExactToOneRounding) {
  struct Case {
    std::int64_t rows, cols;
  };
  for (const Case& at : {Case{0, 5}, Case{1, 1}, Case{3, 64}, Case{200, 130}, Case{1000, 37}}) {
    const DTypeArray x(GetParam(), normal_floats(at.rows * at.cols, 6));
    const DTypeArray out = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray sums(GetParam(), at.cols);
      column_sum(parallel, x.data(), sums.data(), at.rows, at.cols, GetParam());
      return sums;
    });
    for (std::int64_t c = 0; c < at.cols; ++c) {
      double want = 0.0, magnitude = 0.0;
      for (std::int64_t r = 0; r < at.rows; ++r) {
        const double value = x[static_cast<std::size_t>(r * at.cols + c)];
        want += value;
        magnitude += std::abs(value);
      }
      EXPECT_NEAR(out[static_cast<std::size_t>(c)], want,
                  rounding_at(GetParam(), want) + 1e-6 * magnitude);
    }
  }
}

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
