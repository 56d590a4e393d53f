// Attention in parts, as every implementation of Kernels computes it: the parts of a sequence,
// merged in different orders, against fp64.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/attention_contract.hpp"

namespace sluice::testing {

using kernels::AttentionPart;

// A sequence cut at `cut`: two causal squares, and the rectangle of the late rows and the early
// keys.
struct Parts {
  AttentionShape shape;
  std::int64_t cut;
  std::int64_t width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
  std::int64_t cols() const { return shape.heads * shape.head_dim; }
  std::int64_t kv_cols() const { return 2 * shape.kv_heads * shape.head_dim; }
  AttentionPart part(std::int64_t queries, std::int64_t keys, bool causal) const {
    return {queries,        keys,   shape.heads, shape.kv_heads,
            shape.head_dim, causal, shape.time,  shape.dtype};
  }
  std::vector<AttentionPart> all() const {
    return {part(cut, cut, true), part(shape.time - cut, shape.time - cut, true),
            part(shape.time - cut, cut, false)};
  }
  std::int64_t first_query(std::size_t i) const { return i == 0 ? 0 : cut; }
  std::int64_t first_key(std::size_t i) const { return i == 1 ? cut : 0; }
};

// Rows of keys and values alone.
inline DTypeArray keys_of(const Parts& parts, const DTypeArray& qkv) {
  DTypeArray kv(parts.shape.dtype, parts.shape.time * parts.kv_cols());
  for (std::int64_t t = 0; t < parts.shape.time; ++t) {
    for (std::int64_t i = 0; i < parts.kv_cols(); ++i) {
      kv.set(static_cast<std::size_t>(t * parts.kv_cols() + i),
             qkv[static_cast<std::size_t>(t * parts.width() + parts.cols() + i)]);
    }
  }
  return kv;
}

// Around the tiles of 16 rows; odd head sizes; every kind of grouping.
template <class Backend>
std::vector<Parts> attention_parts(DType dtype) {
  std::vector<Parts> parts{{{1, 40, 4, 2, 8, dtype}, 17},
                           {{1, 48, 2, 1, 16, dtype}, 16},
                           {{1, 33, 3, 3, 7, dtype}, 32},
                           {{1, 20, 1, 1, 256, dtype}, 9},
                           {{1, 2, 1, 1, 1, dtype}, 1}};
  if (!Backend::kSlow) {
    parts.push_back({{1, 130, 6, 3, 20, dtype}, 65});
    parts.push_back({{1, 200, 2, 1, 64, dtype}, 72});
  }
  return parts;
}

// order: of the parts, as numbers in Parts::all().
template <class Backend>
AttentionOutput attend_in_parts(Kernels& kernels, const Parts& parts, const DTypeArray& qkv,
                                const std::vector<std::size_t>& order) {
  const AttentionShape& s = parts.shape;
  BackendArray<Backend> in(qkv), kv(keys_of(parts, qkv));
  BackendArray<Backend> out(DType::kF32, s.time * parts.cols());
  BackendArray<Backend> lse(DType::kF32, s.heads * s.time);
  std::vector<bool> seen(2, false);
  for (const std::size_t i : order) {
    const AttentionPart part = parts.all()[i];
    typename Backend::Memory workspace(kernels.attention_part_workspace_bytes(part));
    const std::int64_t query = parts.first_query(i);
    const std::size_t rows = query > 0 ? 1 : 0;
    kernels.attention_part_forward(
        part, in.at(query * parts.width()), kv.at(parts.first_key(i) * parts.kv_cols()),
        !seen[rows], out.floats() + query * parts.cols(), lse.floats() + query, workspace.data());
    seen[rows] = true;
  }
  return {out.read(), lse.read()};
}

// The sums of all parts' gradients, as rows of q, k and v. saved: out of the parts' dtype, and lse.
template <class Backend>
DTypeArray attend_backward_in_parts(Kernels& kernels, const Parts& parts, const DTypeArray& dout,
                                    const DTypeArray& qkv, const AttentionOutput& saved) {
  const AttentionShape& s = parts.shape;
  BackendArray<Backend> in(qkv), kv(keys_of(parts, qkv)), grad(dout), out(saved.out);
  BackendArray<Backend> lse(saved.lse);
  BackendArray<Backend> dq(DTypeArray(DType::kF32, s.time * parts.cols()));
  BackendArray<Backend> dkv(DTypeArray(DType::kF32, s.time * parts.kv_cols()));
  for (std::size_t i = 0; i < 3; ++i) {
    const AttentionPart part = parts.all()[i];
    typename Backend::Memory workspace(kernels.attention_part_workspace_bytes(part));
    const std::int64_t query = parts.first_query(i), key = parts.first_key(i);
    kernels.attention_part_backward(
        part, grad.at(query * parts.cols()), in.at(query * parts.width()),
        kv.at(key * parts.kv_cols()), out.at(query * parts.cols()), lse.floats() + query,
        dq.floats() + query * parts.cols(), dkv.floats() + key * parts.kv_cols(), workspace.data());
  }
  const DTypeArray of_queries = dq.read(), of_keys = dkv.read();
  DTypeArray sums(DType::kF32, s.time * parts.width());
  for (std::int64_t t = 0; t < s.time; ++t) {
    for (std::int64_t i = 0; i < parts.width(); ++i) {
      const bool query = i < parts.cols();
      sums.set(static_cast<std::size_t>(t * parts.width() + i),
               query ? of_queries[static_cast<std::size_t>(t * parts.cols() + i)]
                     : of_keys[static_cast<std::size_t>(t * parts.kv_cols() + i - parts.cols())]);
    }
  }
  return sums;
}

// The output after all parts, rounded as passes save it.
inline AttentionOutput saved_of(const Parts& parts, const AttentionOutput& made) {
  AttentionOutput saved{DTypeArray(parts.shape.dtype, parts.shape.time * parts.cols()), made.lse};
  for (std::size_t i = 0; i < saved.out.size(); ++i) saved.out.set(i, made.out[i]);
  return saved;
}

template <class Backend>
class AttentionPartContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(AttentionPartContract);

TYPED_TEST_P(AttentionPartContract, MergedOutputsAreThoseOfFp64) {
  for (const DType dtype : kActDTypes) {
    for (const Parts& parts : attention_parts<TypeParam>(dtype)) {
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(parts.shape), 1));
      const auto want = reference::attention(parts.shape, doubles(qkv));
      for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}}) {
        const AttentionOutput got = attend_in_parts<TypeParam>(this->kernels(), parts, qkv, order);
        for (std::size_t i = 0; i < want.out.size(); ++i) {
          ASSERT_NEAR(got.out[i], want.out[i], 4e-6) << parts.shape.time << " at " << i;
        }
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          ASSERT_NEAR(got.lse[i], want.lse[i],
                      TypeParam::kLseError * (1.0 + std::abs(want.lse[i])));
        }
      }
    }
  }
}

// A part with scores in the hundreds above those before it, and below.
TYPED_TEST_P(AttentionPartContract, MergesScoresInTheHundreds) {
  const Parts parts{{1, 150, 1, 1, 16, DType::kF32}, 70};
  const DTypeArray qkv(DType::kF32, normal_floats(qkv_elems(parts.shape), 2, 12.0f));
  const auto want = reference::attention(parts.shape, doubles(qkv));
  for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {0, 2, 1}}) {
    const AttentionOutput got = attend_in_parts<TypeParam>(this->kernels(), parts, qkv, order);
    for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 1e-2);
  }
}

TYPED_TEST_P(AttentionPartContract, GradientsAddUpToThoseOfFp64) {
  for (const DType dtype : kActDTypes) {
    for (const Parts& parts : attention_parts<TypeParam>(dtype)) {
      const AttentionShape& s = parts.shape;
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 5));
      const DTypeArray dout(dtype, normal_floats(out_elems(s), 6));
      const AttentionOutput saved =
          saved_of(parts, attend_in_parts<TypeParam>(this->kernels(), parts, qkv, {0, 1, 2}));
      const auto want = attention_gradient(s, dout, qkv, saved.out);
      const double allowed =
          2e-5 * std::sqrt(std::sqrt(static_cast<double>(s.heads / s.kv_heads * s.time)));
      const DTypeArray got =
          attend_backward_in_parts<TypeParam>(this->kernels(), parts, dout, qkv, saved);
      expect_near(
          got, want, [&](double) { return allowed; }, std::to_string(s.time));
    }
  }
}

TYPED_TEST_P(AttentionPartContract, GivesTheSameBitsInEveryRun) {
  const Parts parts = attention_parts<TypeParam>(DType::kBF16).front();
  const AttentionShape& s = parts.shape;
  const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 7));
  const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 8));
  const AttentionOutput one = attend_in_parts<TypeParam>(this->kernels(), parts, qkv, {0, 1, 2});
  EXPECT_TRUE(attend_in_parts<TypeParam>(this->kernels(), parts, qkv, {0, 1, 2}) == one);
  const AttentionOutput saved = saved_of(parts, one);
  EXPECT_TRUE(attend_backward_in_parts<TypeParam>(this->kernels(), parts, dout, qkv, saved) ==
              attend_backward_in_parts<TypeParam>(this->kernels(), parts, dout, qkv, saved));
}

// In the queries of the late rows, whose output two parts make, in either order.
TYPED_TEST_P(AttentionPartContract, NanInAQueryReachesItsOutput) {
  const Parts parts{{1, 20, 1, 1, 8, DType::kF32}, 10};
  DTypeArray qkv(DType::kF32, normal_floats(qkv_elems(parts.shape), 10));
  qkv.set(15 * 24, std::numeric_limits<float>::quiet_NaN());
  for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {0, 2, 1}}) {
    const AttentionOutput got = attend_in_parts<TypeParam>(this->kernels(), parts, qkv, order);
    for (std::size_t d = 0; d < 8; ++d) {
      EXPECT_TRUE(std::isnan(got.out[15 * 8 + d]));
      EXPECT_FALSE(std::isnan(got.out[14 * 8 + d]));
    }
    EXPECT_TRUE(std::isnan(got.lse[15]));
  }
}

TYPED_TEST_P(AttentionPartContract, RefusesPartsThatAreNoSquare) {
  const Kernels& kernels = this->kernels();
  EXPECT_THROW(kernels.attention_part_workspace_bytes({4, 5, 2, 2, 8, true, 5, DType::kF32}),
               InternalError);
  EXPECT_THROW(kernels.attention_part_workspace_bytes({4, 4, 3, 2, 8, true, 4, DType::kF32}),
               InternalError);
}

REGISTER_TYPED_TEST_SUITE_P(AttentionPartContract, MergedOutputsAreThoseOfFp64,
                            MergesScoresInTheHundreds, GradientsAddUpToThoseOfFp64,
                            GivesTheSameBitsInEveryRun, NanInAQueryReachesItsOutput,
                            RefusesPartsThatAreNoSquare);

}  // namespace sluice::testing
