// Sums of activations and gradient plumbing, as every implementation of Kernels computes them: to
// the bit, but for sums down the columns.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

// Around vectors, packs, norm blocks of 4,096 elements, pieces of 32,768, and all blocks of the
// emulated machine.
template <class Backend>
std::vector<std::int64_t> elementwise_sizes() {
  std::vector<std::int64_t> sizes{0, 1, 5, 7, 8, 16, 33, 255, 2048, 2049, 4096, 32768 + 5, 50003};
  if (!Backend::kSlow) sizes.push_back(100003);
  return sizes;
}

// A number of any act dtype from its bits, those of bf16 and fp16 below.
inline void set_bits(DTypeArray& array, std::size_t i, std::uint32_t bits) {
  const std::size_t bytes = dtype_bytes(array.type());
  std::memcpy(static_cast<std::uint8_t*>(array.data()) + i * bytes, &bits, bytes);
}
inline std::uint32_t bits_of(const DTypeArray& array, std::size_t i) {
  std::uint32_t bits = 0;
  const std::size_t bytes = dtype_bytes(array.type());
  std::memcpy(&bits, array.bytes().data() + i * bytes, bytes);
  return bits;
}

// Normal numbers among all kinds of others: NaNs with payloads, infinities, denormals of either
// precision, ties, and numbers that round to infinity.
inline DTypeArray numbers_of_all_kinds(DType type, std::int64_t elems, unsigned seed) {
  DTypeArray array(type, normal_floats(elems, seed));
  std::size_t i = 0;
  for (const std::uint32_t bits :
       {0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0xffa12345u, 0x00000001u,
        0x807fffffu, 0x3f808000u, 0x3f818000u, 0xbf808000u, 0x7f7fffffu, 0x477fefffu, 0x477ff000u,
        0x33000000u, 0x33000001u, 0x387fe000u, 0x38800000u, 0x7f7f8000u, 0x3f807fffu}) {
    if ((i += 3) >= array.size()) break;
    set_bits(array, i, type == DType::kF32 ? bits : bits >> 16);
  }
  return array;
}

// Every number of 16 bits, in every place of a vector. Of fp32: every sign, exponent and upper
// mantissa with the lower halves that rounding to bf16 turns on; the ties of fp16, whose last bit
// is fp32's bit 13 and up to ten bits higher in a subnormal; and the neighbours of its numbers.
inline DTypeArray every_rounding_case(DType type) {
  std::vector<std::uint32_t> cases;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    if (type != DType::kF32) {
      cases.push_back(upper);
      continue;
    }
    for (const std::uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      cases.push_back(upper << 16 | lower);
    }
    const float half = to_float(f16{static_cast<std::uint16_t>(upper)});
    for (const float value : {half, std::nextafterf(half, 1e9f), std::nextafterf(half, 0)}) {
      cases.push_back(std::bit_cast<std::uint32_t>(value));
    }
  }
  for (std::uint32_t high = 0; type == DType::kF32 && high < 0x200u; ++high) {
    for (std::uint32_t bit = 12; bit < 23; ++bit) {
      for (const std::uint32_t above : {0u, 1u, 2u, 3u}) {
        const std::uint32_t tie = ((above << (bit + 1)) | (1u << bit)) & 0x7fffffu;
        for (const std::uint32_t mantissa : {tie - 1, tie, tie + 1}) {
          cases.push_back((high << 23) | mantissa);
        }
      }
    }
  }
  cases.insert(cases.end(), cases.begin(), cases.begin() + 7);
  DTypeArray array(type, static_cast<std::int64_t>(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) set_bits(array, i, cases[i]);
  return array;
}

// Equal types are copied. weight: bf16 ties go away from zero.
inline DTypeArray cast_by_scalars(const DTypeArray& in, DType to, bool weight) {
  DTypeArray out(to, static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint32_t bits = bits_of(in, i);
    float value = std::bit_cast<float>(bits);
    if (in.type() == DType::kBF16) value = to_float(bf16{static_cast<std::uint16_t>(bits)});
    if (in.type() == DType::kF16) value = to_float(f16{static_cast<std::uint16_t>(bits)});
    std::uint32_t want = std::bit_cast<std::uint32_t>(value);
    if (to == DType::kBF16) {
      want = (weight ? bf16_weight_from_float(value) : bf16_from_float(value)).bits;
    } else if (to == DType::kF16) {
      want = f16_from_float(value).bits;
    }
    set_bits(out, i, to == in.type() ? bits : want);
  }
  return out;
}

// The documented order, element by element.
inline double squared_norm_in_lanes(const DTypeArray& grad, const Kernels::Block& block,
                                    DType round_to) {
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

template <class Backend>
std::vector<double> squared_norms(const Variation& at, const DTypeArray& grad, DType round_to,
                                  const std::vector<Kernels::Block>& blocks) {
  BackendArray<Backend> in(grad, at.offset);
  BackendNumbers<Backend, double> partial(std::vector<double>(blocks.size(), -1.0));
  at.kernels.squared_norm_blocks(in.data(), grad.type(), round_to, blocks, partial.data());
  return partial.read();
}

template <class Backend>
class ElementwiseContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(ElementwiseContract);

TYPED_TEST_P(ElementwiseContract, CastsAreTheScalarConversionsToTheBit) {
  for (const DType from : kActDTypes) {
    const DTypeArray all = every_rounding_case(from);
    std::vector<DTypeArray> inputs{all};
    for (const std::int64_t elems : {1, 3, 4, 517, 4099}) {
      inputs.push_back(numbers_of_all_kinds(from, elems, 1));
    }
    for (const DTypeArray& in : inputs) {
      const auto elems = static_cast<std::int64_t>(in.size());
      for (const DType to : kActDTypes) {
        for (const bool weight : {false, true}) {
          const DTypeArray want = cast_by_scalars(in, to, weight);
          SCOPED_TRACE(std::string(dtype_name(from)) + " to " + std::string(dtype_name(to)));
          this->everywhere(
              [&](const Variation& at) {
                BackendArray<TypeParam> numbers(in, at.offset), out(to, elems, at.offset);
                at.kernels.cast(numbers.data(), from, out.data(), to, weight, elems);
                return out.read();
              },
              [&](const DTypeArray& got) {
                expect_same_numbers(got, want, TypeParam::kKeepsNanBits);
              });
        }
      }
    }
  }
}

TYPED_TEST_P(ElementwiseContract, AccumulateAddsInFp32ToTheBit) {
  for (const DType dtype : kActDTypes) {
    for (const std::int64_t elems : elementwise_sizes<TypeParam>()) {
      // Which of two NaNs a sum keeps is left to the compiler, so only one side has any.
      const DTypeArray grad = numbers_of_all_kinds(dtype, elems, 2);
      const DTypeArray before(DType::kF32, normal_floats(elems, 3, 1e3f));
      for (const bool first : {false, true}) {
        DTypeArray want(DType::kF32, elems);
        for (std::size_t i = 0; i < grad.size(); ++i) {
          want.set(i, first ? grad[i] : before[i] + grad[i]);
        }
        this->everywhere(
            [&](const Variation& at) {
              BackendArray<TypeParam> sum(before, at.offset), from(grad, at.offset);
              at.kernels.accumulate(sum.floats(), from.data(), dtype, first, elems);
              return sum.read();
            },
            [&](const DTypeArray& got) { expect_same_numbers(got, want); });
      }
    }
  }
}

TYPED_TEST_P(ElementwiseContract, AddAndFoldRoundTheSumOnceAlsoInPlace) {
  for (const DType dtype : kActDTypes) {
    for (const std::int64_t elems : elementwise_sizes<TypeParam>()) {
      const DTypeArray a = numbers_of_all_kinds(dtype, elems, 1);
      const DTypeArray b(dtype, normal_floats(elems, 2, 1e3f));
      DTypeArray want(dtype, elems);
      for (std::size_t i = 0; i < want.size(); ++i) want.set(i, a[i] + b[i]);
      this->everywhere(
          [&](const Variation& at) {
            BackendArray<TypeParam> left(a, at.offset), right(b), folded(a), out(dtype, elems);
            at.kernels.add(left.data(), right.data(), out.data(), elems, dtype);
            at.kernels.fold(folded.data(), right.data(), dtype, elems);
            at.kernels.add(left.data(), right.data(), right.data(), elems, dtype);
            BackendArray<TypeParam> other(b);
            at.kernels.add(left.data(), other.data(), left.data(), elems, dtype);
            return std::vector<DTypeArray>{out.read(), folded.read(), right.read(), left.read()};
          },
          [&](const std::vector<DTypeArray>& got) {
            for (const DTypeArray& sum : got) expect_same_numbers(sum, want);
          });
    }
  }
}

// Whole blocks and short ones, gaps, an empty one, one element, a longer one than before; more runs
// than one launch's parameters hold.
TYPED_TEST_P(ElementwiseContract, SquaredNormKeepsItsDocumentedOrder) {
  std::vector<Kernels::Block> blocks{{100, 100}, {33, 50}, {0, 4096}, {4096, 8192}, {8192, 9001}};
  for (std::int64_t i = 0; i < 300; ++i) blocks.push_back({9001 + i * 20, 9001 + i * 20 + i % 19});
  for (std::int64_t begin = 16384; begin < 49229; begin += 4096) {
    blocks.push_back({begin, std::min<std::int64_t>(begin + 4096, 49229)});
  }
  blocks.push_back({20000, 30000});
  for (const DType dtype : kActDTypes) {
    std::vector<float> values = normal_floats(49229, 5, 1e-3f);
    values[17] = 1e-42f;  // a denormal
    const DTypeArray grad(dtype, values);
    for (const DType round_to : kActDTypes) {
      std::vector<double> want;
      for (const auto& block : blocks) {
        want.push_back(squared_norm_in_lanes(grad, block, round_to));
      }
      this->everywhere(
          [&](const Variation& at) {
            EXPECT_EQ(squared_norms<TypeParam>(at, grad, round_to, {}), std::vector<double>());
            return squared_norms<TypeParam>(at, grad, round_to, blocks);
          },
          [&](const std::vector<double>& got) { EXPECT_EQ(got, want); });
    }
  }
}

// A fp32 sum of fp16 gradients that is too large for fp16 counts as an overflow.
TYPED_TEST_P(ElementwiseContract, SquaredNormCarriesInfinityNanAndOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : kActDTypes) {
    std::vector<float> values(64, 1.0f);
    values[3] = infinity;
    values[40] = std::numeric_limits<float>::quiet_NaN();
    const DTypeArray grad(dtype, values), large(dtype, std::vector<float>(40, 65520.0f));
    for (const DType round_to : kActDTypes) {
      const bool overflows =
          dtype == DType::kF16 || (dtype == DType::kF32 && round_to == DType::kF16);
      TypeParam::for_each_variation([&](const Variation& at) {
        const auto bad = squared_norms<TypeParam>(at, grad, round_to, {{0, 32}, {32, 64}});
        EXPECT_TRUE(std::isinf(bad[0]) && std::isnan(bad[1])) << at.name;
        const auto wide = squared_norms<TypeParam>(at, large, round_to, {{0, 17}, {17, 40}});
        EXPECT_EQ(std::isinf(wide[0]) && std::isinf(wide[1]), overflows) << at.name;
        EXPECT_EQ(std::isfinite(wide[0]) && std::isfinite(wide[1]), !overflows) << at.name;
      });
    }
  }
}

TYPED_TEST_P(ElementwiseContract, ColumnSumIsExactToOneRounding) {
  constexpr std::int64_t kSizes[][2] = {{0, 5},     {1, 1},    {3, 64},   {200, 130},
                                        {1000, 37}, {513, 40}, {1700, 37}};
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, cols] : kSizes) {
      const DTypeArray x(dtype, normal_floats(rows * cols, 6));
      reference::Doubles want(static_cast<std::size_t>(cols)), magnitude = want;
      for (std::size_t i = 0; i < x.size(); ++i) {
        want[i % want.size()] += double{x[i]};
        magnitude[i % want.size()] += std::abs(double{x[i]});
      }
      this->everywhere(
          [&](const Variation& at) {
            BackendArray<TypeParam> in(x, at.offset), out(dtype, cols);
            at.kernels.column_sum(in.data(), out.data(), rows, cols, dtype);
            return out.read();
          },
          [&](const DTypeArray& got) {
            for (std::size_t c = 0; c < want.size(); ++c) {
              EXPECT_NEAR(got[c], want[c], rounding_at(dtype, want[c]) + 1e-6 * magnitude[c])
                  << rows << " x " << cols << " at " << c;
            }
          });
    }
  }
}

TYPED_TEST_P(ElementwiseContract, RefusesOtherTypes) {
  std::int32_t in[4] = {};
  float out[4] = {};
  Kernels& kernels = this->kernels();
  EXPECT_THROW(kernels.cast(in, DType::kI32, out, DType::kF32, false, 4), InternalError);
  EXPECT_THROW(kernels.add(in, in, in, 4, DType::kI32), InternalError);
}

TYPED_TEST_P(ElementwiseContract, CopiesColumnsAndLeavesTheRest) {
  constexpr std::int64_t kRows = 37, kCols = 5;
  const typename Kernels::Columns from{3, 11}, to{1, 9};
  for (const DType dtype : kActDTypes) {
    const DTypeArray in(dtype, normal_floats(kRows * from.width, 1));
    const DTypeArray before(dtype, normal_floats(kRows * to.width, 2));
    DTypeArray want = before;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const std::int64_t row = i / kCols, col = i % kCols;
      want.set(static_cast<std::size_t>(row * to.width + to.first + col),
               in[static_cast<std::size_t>(row * from.width + from.first + col)]);
    }
    BackendArray<TypeParam> source(in), target(before);
    this->kernels().copy_columns(source.data(), from, target.data(), to, kRows, kCols, dtype);
    EXPECT_TRUE(target.read() == want);
  }
}

REGISTER_TYPED_TEST_SUITE_P(ElementwiseContract, CastsAreTheScalarConversionsToTheBit,
                            AccumulateAddsInFp32ToTheBit, AddAndFoldRoundTheSumOnceAlsoInPlace,
                            SquaredNormKeepsItsDocumentedOrder,
                            SquaredNormCarriesInfinityNanAndOverflow, ColumnSumIsExactToOneRounding,
                            RefusesOtherTypes, CopiesColumnsAndLeavesTheRest);

}  // namespace sluice::testing
