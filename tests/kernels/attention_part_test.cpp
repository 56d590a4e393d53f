// Attention in parts on the host, against fp64 and against attention in one call.
#include "kernels/host/attention_part.hpp"

#include <gtest/gtest.h>

#include "tests/contract/attention_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::attention_gradient;
using testing::AttentionOutput;
using testing::qkv_elems;

// A sequence cut at `cut`: two causal squares, and the rectangle of the late rows and the early keys.
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

DTypeArray keys_of(const Parts& parts, const DTypeArray& qkv) {
  DTypeArray kv(parts.shape.dtype, parts.shape.time * parts.kv_cols());
  for (std::int64_t t = 0; t < parts.shape.time; ++t) {
    for (std::int64_t i = 0; i < parts.kv_cols(); ++i) {
      kv.set(static_cast<std::size_t>(t * parts.kv_cols() + i),
             qkv[static_cast<std::size_t>(t * parts.width() + parts.cols() + i)]);
    }
  }
  return kv;
}

const std::byte* at(const DTypeArray& array, std::int64_t elem) {
  return static_cast<const std::byte*>(array.data()) +
         static_cast<std::size_t>(elem) * dtype_bytes(array.type());
}

std::vector<Parts> cases(DType dtype) {
  return {{{1, 40, 4, 2, 8, dtype}, 17},
          {{1, 130, 6, 3, 20, dtype}, 65},
          {{1, 200, 2, 1, 64, dtype}, 72},
          {{1, 2, 1, 1, 1, dtype}, 1}};
}

AttentionOutput forward(Kernels& kernels, const Parts& parts, const DTypeArray& qkv,
                        const std::vector<std::size_t>& order) {
  const AttentionShape& s = parts.shape;
  const DTypeArray kv = keys_of(parts, qkv);
  AttentionOutput made{DTypeArray(DType::kF32, s.time * parts.cols()),
                       DTypeArray(DType::kF32, s.heads * s.time)};
  std::vector<bool> seen(2, false);
  for (const std::size_t i : order) {
    const AttentionPart part = parts.all()[i];
    HostBackend::Memory workspace(kernels.attention_part_workspace_bytes(part));
    const std::int64_t query = parts.first_query(i);
    const std::size_t rows = query > 0 ? 1 : 0;
    kernels.attention_part_forward(part, at(qkv, query * parts.width()),
                                   at(kv, parts.first_key(i) * parts.kv_cols()), !seen[rows],
                                   static_cast<float*>(made.out.data()) + query * parts.cols(),
                                   static_cast<float*>(made.lse.data()) + query, workspace.data());
    seen[rows] = true;
  }
  return made;
}

TEST(AttentionPart, MergedOutputsAreThoseOfFp64) {
  const auto kernels = make_host_kernels({.threads = 2});
  for (const DType dtype : testing::kActDTypes) {
    for (const Parts& parts : cases(dtype)) {
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(parts.shape), 1));
      const auto want = reference::attention(parts.shape, doubles(qkv));
      for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}}) {
        const AttentionOutput got = forward(*kernels, parts, qkv, order);
        for (std::size_t i = 0; i < want.out.size(); ++i) {
          ASSERT_NEAR(got.out[i], want.out[i], 4e-6) << parts.shape.time << " at " << i;
        }
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          ASSERT_NEAR(got.lse[i], want.lse[i], 2e-6 * (1.0 + std::abs(want.lse[i])));
        }
      }
    }
  }
}

// A part with scores in the hundreds above those before it, and below.
TEST(AttentionPart, MergesScoresInTheHundreds) {
  const auto kernels = make_host_kernels({.threads = 1});
  const Parts parts{{1, 150, 1, 1, 16, DType::kF32}, 70};
  const DTypeArray qkv(DType::kF32, normal_floats(qkv_elems(parts.shape), 2, 12.0f));
  const auto want = reference::attention(parts.shape, doubles(qkv));
  for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {0, 2, 1}}) {
    const AttentionOutput got = forward(*kernels, parts, qkv, order);
    for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 1e-2);
  }
}

TEST(AttentionPart, GradientsAddUpToThoseOfFp64) {
  const auto kernels = make_host_kernels({.threads = 2});
  for (const DType dtype : testing::kActDTypes) {
    for (const Parts& parts : cases(dtype)) {
      const AttentionShape& s = parts.shape;
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 5));
      const DTypeArray dout(dtype, normal_floats(s.time * parts.cols(), 6));
      const AttentionOutput saved = forward(*kernels, parts, qkv, {0, 1, 2});
      DTypeArray out(dtype, s.time * parts.cols());
      for (std::size_t i = 0; i < out.size(); ++i) out.set(i, saved.out[i]);
      const DTypeArray kv = keys_of(parts, qkv);
      std::vector<float> dq(out.size(), 0.0f), dkv(kv.size(), 0.0f);
      for (std::size_t i = 0; i < 3; ++i) {
        const AttentionPart part = parts.all()[i];
        HostBackend::Memory workspace(kernels->attention_part_workspace_bytes(part));
        const std::int64_t query = parts.first_query(i), key = parts.first_key(i);
        kernels->attention_part_backward(
            part, at(dout, query * parts.cols()), at(qkv, query * parts.width()),
            at(kv, key * parts.kv_cols()), at(out, query * parts.cols()),
            static_cast<const float*>(saved.lse.data()) + query, dq.data() + query * parts.cols(),
            dkv.data() + key * parts.kv_cols(), workspace.data());
      }
      const auto want = attention_gradient(s, dout, qkv, out);
      const double allowed =
          2e-5 * std::sqrt(std::sqrt(static_cast<double>(s.heads / s.kv_heads * s.time)));
      for (std::int64_t t = 0; t < s.time; ++t) {
        for (std::int64_t i = 0; i < parts.width(); ++i) {
          const bool query = i < parts.cols();
          const float got =
              query ? dq[static_cast<std::size_t>(t * parts.cols() + i)]
                    : dkv[static_cast<std::size_t>(t * parts.kv_cols() + i - parts.cols())];
          ASSERT_NEAR(got, want[static_cast<std::size_t>(t * parts.width() + i)], allowed)
              << "row " << t << " at " << i;
        }
      }
    }
  }
}

TEST(AttentionPart, BitsDoNotDependOnTheThreadCount) {
  const auto one = make_host_kernels({.threads = 1}), four = make_host_kernels({.threads = 4});
  for (const Parts& parts : cases(DType::kBF16)) {
    const DTypeArray qkv(DType::kBF16, normal_floats(qkv_elems(parts.shape), 7));
    EXPECT_TRUE(forward(*one, parts, qkv, {0, 1, 2}) == forward(*four, parts, qkv, {0, 1, 2}));
  }
}

TEST(AttentionPart, RefusesPartsThatAreNoSquare) {
  const auto kernels = make_host_kernels({.threads = 1});
  EXPECT_THROW(kernels->attention_part_workspace_bytes({4, 5, 2, 2, 8, true, 5, DType::kF32}),
               InternalError);
  EXPECT_THROW(kernels->attention_part_workspace_bytes({4, 4, 3, 2, 8, true, 4, DType::kF32}),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::host
