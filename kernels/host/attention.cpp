// Causal attention with exact softmax rows, blocked over queries (attention.hpp has the outline).
//
// A task is one (batch, kv_head). It widens the keys and values once into its worker's scratch and
// goes over the query heads of the group in blocks of 64 rows. For a block of queries [b, b + r):
//
//   forward    S = Q K^T over keys [0, b + r);  P = exp(scale S - max);  out = (P V) / sum(P)
//              lse = max + log(sum)
//   backward   P = exp(scale S - lse);  dP = dO V^T;  delta = sum(dO * out) for each row
//              dS = scale P (dP - delta);  dV += P^T dO;  dK += dS^T Q;  dQ = dS K
//
// Masked scores are set to zero after exp, so the products may run over whole blocks. dK and dV are
// accumulated by one task in a fixed order. The cost is O(time^2 head_dim) per head, half of it
// saved by the causal blocks; memory is O(time * (64 + head_dim)) per worker.
#include "kernels/host/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.hpp"
#include "kernels/host/attention_rows.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/onednn.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/rows.hpp"

namespace sluice::kernels::host {
namespace {

// The forward pass also divides query rows if (batch, kv_head) alone would leave threads idle.
constexpr std::int64_t kEnoughTasks = 16;

// Addresses within qkv, out and lse. Sources are only read, although Rows are not const.
class Layout {
 public:
  explicit Layout(const AttentionShape& shape) : shape_(shape) {
    SLUICE_CHECK(shape.batch > 0 && shape.time > 0 && shape.head_dim > 0);
    SLUICE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0);
    SLUICE_CHECK(is_act_dtype(shape.dtype));
  }
  std::int64_t group() const { return shape_.heads / shape_.kv_heads; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  Rows q(const void* qkv, std::int64_t batch, std::int64_t head) const {
    return packed(qkv, batch, head);
  }
  Rows k(const void* qkv, std::int64_t batch, std::int64_t kv_head) const {
    return packed(qkv, batch, shape_.heads + kv_head);
  }
  Rows v(const void* qkv, std::int64_t batch, std::int64_t kv_head) const {
    return packed(qkv, batch, shape_.heads + shape_.kv_heads + kv_head);
  }
  Rows out(const void* out, std::int64_t batch, std::int64_t head) const {
    const Rows all{const_cast<void*>(out), shape_.dtype, shape_.heads * shape_.head_dim};
    return all.at(batch * shape_.time, head * shape_.head_dim);
  }
  std::int64_t lse(std::int64_t batch, std::int64_t head) const {
    return (batch * shape_.heads + head) * shape_.time;
  }

 private:
  Rows packed(const void* qkv, std::int64_t batch, std::int64_t slot) const {
    const std::int64_t width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    return Rows{const_cast<void*>(qkv), shape_.dtype, width}.at(batch * shape_.time,
                                                                slot * shape_.head_dim);
  }

  AttentionShape shape_;
};

// Queries [begin, begin + rows) of one head use the keys [0, begin + rows); the causal mask hides
// the last ones from the first rows.
struct QueryBlock {
  std::int64_t begin, rows;
  std::int64_t keys() const { return begin + rows; }
  std::int64_t visible(std::int64_t row) const { return begin + row + 1; }
};

// scratch.scores [rows, keys] = q k^T, unscaled.
void multiply_scores(const QueryBlock& block, std::int64_t head_dim, const View& q, const View& k,
                     const Scratch& scratch) {
  const SgemmShape shape{.m = block.rows, .n = block.keys(), .k = head_dim, .transpose_b = true};
  sgemm(shape, q.data, q.stride, k.data, k.stride, scratch.scores, scratch.score_stride);
}

void forward_block(const QueryBlock& block, std::int64_t head_dim, float scale, const View& q,
                   const View& k, const View& v, const Rows& out, float* lse,
                   const Scratch& scratch) {
  const std::int64_t keys = block.keys();
  multiply_scores(block, head_dim, q, k, scratch);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    // Exact softmax of the visible keys. Zeros in the masked part keep the product P V whole.
    float* const row = scratch.scores + r * scratch.score_stride;
    const std::int64_t visible = block.visible(r);
    const float shift = scale * row_max(row, visible);
    const float sum = exp_row(row, visible, scale, shift);
    std::fill(row + visible, row + keys, 0.0f);
    lse[block.begin + r] = shift + std::log(sum);
    scratch.factor[r] = 1.0f / sum;
  }
  const SgemmShape shape{.m = block.rows, .n = head_dim, .k = keys};
  sgemm(shape, scratch.scores, scratch.score_stride, v.data, v.stride, scratch.out, head_dim);
  store(scratch.out, block.rows, head_dim, scratch.factor, out.at(block.begin, 0));
}

// The rows of one query head in the backward pass.
struct HeadRows {
  Rows q, out, dout, dq;
  const float* lse;
};

// Adds one block's contribution to dk and dv of its group (writes it if `first`), and stores its
// dq.
void backward_block(const QueryBlock& block, std::int64_t head_dim, float scale,
                    const HeadRows& head, const View& k, const View& v, bool first,
                    const Scratch& scratch) {
  const std::int64_t keys = block.keys();
  const View q = widened(head.q.at(block.begin, 0), block.rows, head_dim, scratch.q);
  const View out = widened(head.out.at(block.begin, 0), block.rows, head_dim, scratch.rows);
  const View dout = widened(head.dout.at(block.begin, 0), block.rows, head_dim, scratch.drows);
  // Recomputing the scores costs one product and saves O(time^2) of stored probabilities.
  multiply_scores(block, head_dim, q, k, scratch);
  sgemm({.m = block.rows, .n = keys, .k = head_dim, .transpose_b = true}, dout.data, dout.stride,
        v.data, v.stride, scratch.dscores, scratch.score_stride);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const probability = scratch.scores + r * scratch.score_stride;
    float* const grad = scratch.dscores + r * scratch.score_stride;
    const std::int64_t visible = block.visible(r);
    // delta = sum(dP * P) for the row, in its cheaper form (FlashAttention, appendix B.2).
    const float delta = dot_row(dout.row(r), out.row(r), head_dim);
    exp_row(probability, visible, scale, head.lse[block.begin + r]);
    softmax_grad_row(probability, grad, visible, delta, scale);
    std::fill(probability + visible, probability + keys, 0.0f);
    std::fill(grad + visible, grad + keys, 0.0f);
  }
  const SgemmShape over_rows{
      .m = keys, .n = head_dim, .k = block.rows, .transpose_a = true, .beta = first ? 0.0f : 1.0f};
  sgemm(over_rows, scratch.scores, scratch.score_stride, dout.data, dout.stride, scratch.dv,
        head_dim);
  sgemm(over_rows, scratch.dscores, scratch.score_stride, q.data, q.stride, scratch.dk, head_dim);
  sgemm({.m = block.rows, .n = head_dim, .k = keys}, scratch.dscores, scratch.score_stride, k.data,
        k.stride, scratch.out, head_dim);
  store(scratch.out, block.rows, head_dim, nullptr, head.dq.at(block.begin, 0));
}

ScratchSize size_of(const AttentionShape& shape) {
  return {shape.time, shape.time, shape.head_dim};
}

std::int64_t forward_segments(const AttentionShape& shape) {
  // At most one segment per block of queries.
  const std::int64_t blocks = Cut::quotient_up(shape.time, kQueryRows);
  const std::int64_t wanted = Cut::quotient_up(kEnoughTasks, shape.batch * shape.kv_heads);
  return std::clamp<std::int64_t>(wanted, 1, blocks);
}

}  // namespace

std::uint64_t attention_workspace_bytes(const Parallel& parallel, const AttentionShape& shape) {
  const Layout checked(shape);
  const std::int64_t tasks = shape.batch * shape.kv_heads * forward_segments(shape);
  return static_cast<std::uint64_t>(Scratch::floats(size_of(shape))) * sizeof(float) *
         static_cast<std::uint64_t>(parallel.workers(tasks));
}

void attention_forward(const Parallel& parallel, const AttentionShape& shape, const void* qkv,
                       void* out, float* lse, void* workspace) {
  const Layout layout(shape);
  const ScratchSize size = size_of(shape);
  const std::int64_t segments = forward_segments(shape);
  const std::int64_t blocks = Cut::quotient_up(shape.time, kQueryRows);
  const std::int64_t pairs = shape.batch * shape.kv_heads;
  parallel.for_each_worker(pairs * segments, [&](std::int64_t task, int worker) {
    const Scratch scratch(size, workspace, worker);
    // Late segments see more keys, so they begin first. A segment is every `segments`-th block.
    const std::int64_t segment = segments - 1 - task / pairs;
    const std::int64_t batch = task % pairs / shape.kv_heads;
    const std::int64_t kv_head = task % pairs % shape.kv_heads;
    const View k = widened(layout.k(qkv, batch, kv_head), shape.time, shape.head_dim, scratch.k);
    const View v = widened(layout.v(qkv, batch, kv_head), shape.time, shape.head_dim, scratch.v);
    for (std::int64_t head = kv_head * layout.group(); head < (kv_head + 1) * layout.group();
         ++head) {
      for (std::int64_t index = segment; index < blocks; index += segments) {
        const std::int64_t begin = index * kQueryRows;
        const QueryBlock block{begin, std::min(kQueryRows, shape.time - begin)};
        const View q =
            widened(layout.q(qkv, batch, head).at(begin, 0), block.rows, shape.head_dim, scratch.q);
        forward_block(block, shape.head_dim, layout.scale(), q, k, v, layout.out(out, batch, head),
                      lse + layout.lse(batch, head), scratch);
      }
    }
  });
}

void attention_backward(const Parallel& parallel, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace) {
  const Layout layout(shape);
  const ScratchSize size = size_of(shape);
  const std::int64_t head_dim = shape.head_dim;
  parallel.for_each_worker(shape.batch * shape.kv_heads, [&](std::int64_t task, int worker) {
    const Scratch scratch(size, workspace, worker);
    const std::int64_t batch = task / shape.kv_heads, kv_head = task % shape.kv_heads;
    const View k = widened(layout.k(qkv, batch, kv_head), shape.time, head_dim, scratch.k);
    const View v = widened(layout.v(qkv, batch, kv_head), shape.time, head_dim, scratch.v);
    // The last block comes first: it sees every key, so it writes all of dk and dv. The other
    // blocks add to them.
    bool first = true;
    for (std::int64_t h = kv_head * layout.group(); h < (kv_head + 1) * layout.group(); ++h) {
      const HeadRows head{layout.q(qkv, batch, h), layout.out(out, batch, h),
                          layout.out(dout, batch, h), layout.q(dqkv, batch, h),
                          lse + layout.lse(batch, h)};
      for (std::int64_t index = Cut::quotient_up(shape.time, kQueryRows) - 1; index >= 0; --index) {
        const std::int64_t begin = index * kQueryRows;
        const QueryBlock block{begin, std::min(kQueryRows, shape.time - begin)};
        backward_block(block, head_dim, layout.scale(), head, k, v, first, scratch);
        first = false;
      }
    }
    store(scratch.dk, shape.time, head_dim, nullptr, layout.k(dqkv, batch, kv_head));
    store(scratch.dv, shape.time, head_dim, nullptr, layout.v(dqkv, batch, kv_head));
  });
}

}  // namespace sluice::kernels::host
