// Attention to keys that come from elsewhere, merged with what was there (FlashAttention-2, Dao
// 2023; Liu et al., "Ring attention with blockwise transformers", 2023).
//
// A part makes, for each query, the softmax of its own scores: max, sum and P V / sum. With lse =
// max + log(sum), the rows before and the new ones join exactly:
//
//   merged = log(exp(lse) + exp(lse'))
//   out    = exp(lse - merged) out + exp(lse' - merged) out'
//
// The backward pass needs no merge, because P = exp(scale S - merged) is of all keys at once. Each
// part adds its terms of dQ, dK and dV to fp32 sums.
#include "kernels/host/attention_part.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/attention_rows.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/onednn.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/rows.hpp"

namespace sluice::kernels::host {
namespace {

// The forward pass divides queries if kv_heads alone would leave threads idle.
constexpr std::int64_t kEnoughTasks = 16;

// Addresses in the operands of a part. Sources are only read, although Rows are not const.
class PartLayout {
 public:
  explicit PartLayout(const AttentionPart& part) : part_(part) {
    SLUICE_CHECK(part.queries > 0 && part.keys > 0 && part.head_dim > 0);
    SLUICE_CHECK(part.kv_heads > 0 && part.heads > 0 && part.heads % part.kv_heads == 0);
    SLUICE_CHECK(!part.causal || part.queries == part.keys);
    SLUICE_CHECK(part.lse_stride >= part.queries);
    SLUICE_CHECK(is_act_dtype(part.dtype));
  }
  std::int64_t group() const { return part_.heads / part_.kv_heads; }
  std::int64_t blocks() const { return Cut::quotient_up(part_.queries, kQueryRows); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(part_.head_dim)); }
  ScratchSize scratch() const { return {part_.keys, part_.queries, part_.head_dim}; }

  Rows q(const void* qkv, std::int64_t head) const {
    const std::int64_t width = (part_.heads + 2 * part_.kv_heads) * part_.head_dim;
    return Rows{const_cast<void*>(qkv), part_.dtype, width}.at(0, head * part_.head_dim);
  }
  Rows k(const void* kv, std::int64_t kv_head) const {
    return Rows{const_cast<void*>(kv), part_.dtype, kv_width()}.at(0, kv_head * part_.head_dim);
  }
  Rows v(const void* kv, std::int64_t kv_head) const { return k(kv, part_.kv_heads + kv_head); }
  // Outputs and their gradients, stored or as fp32 sums.
  Rows out(const void* out, std::int64_t head) const {
    return Rows{const_cast<void*>(out), part_.dtype, out_width()}.at(0, head * part_.head_dim);
  }
  float* sums(float* out, std::int64_t head) const { return out + head * part_.head_dim; }
  std::int64_t out_width() const { return part_.heads * part_.head_dim; }
  std::int64_t kv_width() const { return 2 * part_.kv_heads * part_.head_dim; }

 private:
  AttentionPart part_;
};

// A block of queries of one head, and the keys that it is multiplied by.
struct Block {
  std::int64_t begin, rows, keys;
  bool causal;
  std::int64_t visible(std::int64_t row) const { return causal ? begin + row + 1 : keys; }
};

Block block_at(const AttentionPart& part, std::int64_t index) {
  const std::int64_t begin = index * kQueryRows;
  const std::int64_t rows = std::min(kQueryRows, part.queries - begin);
  return {begin, rows, part.causal ? begin + rows : part.keys, part.causal};
}

// The factors of a row's old output and of its new one, which is not divided by its sum yet.
struct Merge {
  float old_factor, new_factor;
};

// Writes the merged lse.
Merge merge_lse(float& lse, float shift, float sum, bool first) {
  const float own = shift + std::log(sum);
  if (first) {
    lse = own;
    return {0.0f, 1.0f / sum};
  }
  const float before = lse;
  const float larger = before > own ? before : own;  // NaN if `own` is
  lse = larger + std::log(std::exp(before - larger) + std::exp(own - larger));
  return {std::exp(before - lse), std::exp(shift - lse)};
}

void forward_block(const Block& block, const AttentionPart& part, float scale, const View& q,
                   const View& k, const View& v, bool first, float* out, std::int64_t out_stride,
                   float* lse, const Scratch& scratch) {
  const std::int64_t head_dim = part.head_dim;
  sgemm({.m = block.rows, .n = block.keys, .k = head_dim, .transpose_b = true}, q.data, q.stride,
        k.data, k.stride, scratch.scores, scratch.score_stride);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const row = scratch.scores + r * scratch.score_stride;
    const std::int64_t visible = block.visible(r);
    const float shift = scale * row_max(row, visible);
    const float sum = exp_row(row, visible, scale, shift);
    std::fill(row + visible, row + block.keys, 0.0f);
    const Merge merge = merge_lse(lse[block.begin + r], shift, sum, first);
    scratch.factor[r] = merge.new_factor;
    float* const before = out + (block.begin + r) * out_stride;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      before[i] = first ? 0.0f : before[i] * merge.old_factor;
    }
  }
  sgemm({.m = block.rows, .n = head_dim, .k = block.keys}, scratch.scores, scratch.score_stride,
        v.data, v.stride, scratch.out, head_dim);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const sum = out + (block.begin + r) * out_stride;
    const float* const made = scratch.out + r * head_dim;
    for (std::int64_t i = 0; i < head_dim; ++i) sum[i] += made[i] * scratch.factor[r];
  }
}

// The rows of one query head in the backward pass.
struct HeadRows {
  Rows q, out, dout;
  const float* lse;
  float* dq;
};
// Its keys and values, and the sums of their gradients.
struct Keys {
  View k, v;
  float *dk, *dv;
  std::int64_t stride;  // of the sums
};

void backward_block(const Block& block, const AttentionPart& part, float scale,
                    const HeadRows& head, std::int64_t dq_stride, const Keys& keys,
                    const Scratch& scratch) {
  const std::int64_t head_dim = part.head_dim;
  const View q = widened(head.q.at(block.begin, 0), block.rows, head_dim, scratch.q);
  const View out = widened(head.out.at(block.begin, 0), block.rows, head_dim, scratch.rows);
  const View dout = widened(head.dout.at(block.begin, 0), block.rows, head_dim, scratch.drows);
  const SgemmShape over_dims{.m = block.rows, .n = block.keys, .k = head_dim, .transpose_b = true};
  sgemm(over_dims, q.data, q.stride, keys.k.data, keys.k.stride, scratch.scores,
        scratch.score_stride);
  sgemm(over_dims, dout.data, dout.stride, keys.v.data, keys.v.stride, scratch.dscores,
        scratch.score_stride);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const probability = scratch.scores + r * scratch.score_stride;
    float* const grad = scratch.dscores + r * scratch.score_stride;
    const std::int64_t visible = block.visible(r);
    const float delta = dot_row(dout.row(r), out.row(r), head_dim);
    exp_row(probability, visible, scale, head.lse[block.begin + r]);
    softmax_grad_row(probability, grad, visible, delta, scale);
    std::fill(probability + visible, probability + block.keys, 0.0f);
    std::fill(grad + visible, grad + block.keys, 0.0f);
  }
  const SgemmShape over_rows{
      .m = block.keys, .n = head_dim, .k = block.rows, .transpose_a = true, .beta = 1.0f};
  sgemm(over_rows, scratch.scores, scratch.score_stride, dout.data, dout.stride, keys.dv,
        keys.stride);
  sgemm(over_rows, scratch.dscores, scratch.score_stride, q.data, q.stride, keys.dk, keys.stride);
  sgemm({.m = block.rows, .n = head_dim, .k = block.keys, .beta = 1.0f}, scratch.dscores,
        scratch.score_stride, keys.k.data, keys.k.stride, head.dq + block.begin * dq_stride,
        dq_stride);
}

// At most one for each block of queries.
std::int64_t forward_segments(const AttentionPart& part) {
  const std::int64_t wanted = Cut::quotient_up(kEnoughTasks, part.kv_heads);
  return std::clamp<std::int64_t>(wanted, 1, Cut::quotient_up(part.queries, kQueryRows));
}

}  // namespace

std::uint64_t attention_part_workspace_bytes(const Parallel& parallel, const AttentionPart& part) {
  const PartLayout layout(part);
  return static_cast<std::uint64_t>(Scratch::floats(layout.scratch())) * sizeof(float) *
         static_cast<std::uint64_t>(parallel.workers(part.kv_heads * forward_segments(part)));
}

void attention_part_forward(const Parallel& parallel, const AttentionPart& part, const void* qkv,
                            const void* kv, bool first, float* out, float* lse, void* workspace) {
  const PartLayout layout(part);
  const std::int64_t segments = forward_segments(part);
  parallel.for_each_worker(part.kv_heads * segments, [&](std::int64_t task, int worker) {
    const Scratch scratch(layout.scratch(), workspace, worker);
    // Late blocks of a causal part see more keys, so they begin first.
    const std::int64_t segment = segments - 1 - task / part.kv_heads;
    const std::int64_t kv_head = task % part.kv_heads;
    const View k = widened(layout.k(kv, kv_head), part.keys, part.head_dim, scratch.k);
    const View v = widened(layout.v(kv, kv_head), part.keys, part.head_dim, scratch.v);
    for (std::int64_t head = kv_head * layout.group(); head < (kv_head + 1) * layout.group();
         ++head) {
      for (std::int64_t index = segment; index < layout.blocks(); index += segments) {
        const Block block = block_at(part, index);
        const View q =
            widened(layout.q(qkv, head).at(block.begin, 0), block.rows, part.head_dim, scratch.q);
        forward_block(block, part, layout.scale(), q, k, v, first, layout.sums(out, head),
                      layout.out_width(), lse + head * part.lse_stride, scratch);
      }
    }
  });
}

void attention_part_backward(const Parallel& parallel, const AttentionPart& part, const void* dout,
                             const void* qkv, const void* kv, const void* out, const float* lse,
                             float* dq, float* dkv, void* workspace) {
  const PartLayout layout(part);
  parallel.for_each_worker(part.kv_heads, [&](std::int64_t kv_head, int worker) {
    const Scratch scratch(layout.scratch(), workspace, worker);
    const Keys keys{widened(layout.k(kv, kv_head), part.keys, part.head_dim, scratch.k),
                    widened(layout.v(kv, kv_head), part.keys, part.head_dim, scratch.v),
                    dkv + kv_head * part.head_dim, dkv + (part.kv_heads + kv_head) * part.head_dim,
                    layout.kv_width()};
    for (std::int64_t h = kv_head * layout.group(); h < (kv_head + 1) * layout.group(); ++h) {
      const HeadRows head{layout.q(qkv, h), layout.out(out, h), layout.out(dout, h),
                          lse + h * part.lse_stride, layout.sums(dq, h)};
      for (std::int64_t index = layout.blocks() - 1; index >= 0; --index) {
        backward_block(block_at(part, index), part, layout.scale(), head, layout.out_width(), keys,
                       scratch);
      }
    }
  });
}

}  // namespace sluice::kernels::host
