// Attention of a context group whose ranks pass keys and values round a ring (Liu et al., "Ring
// attention with blockwise transformers for near-infinite context", 2023).
//
// A rank has two chunks of the sequence: of 2c chunks those of number r and 2c - 1 - r. So of
// another rank's keys, in chunks s and 2c - 1 - s, all its queries see the first chunk if s < r,
// and the queries of its second chunk see both if s > r: a rectangle of equal size either way,
// without a mask inside. Its own keys are a causal square, because the rows of both chunks are in
// ascending order.
//
// Hop k brings the keys of rank r - k. Outputs are merged in fp32 by their log-sum-exp. The
// gradients of keys travel after the keys: a rank adds its terms to them in fp32 and passes them
// on, and the last hop brings them home, where the rank's own terms are added. So the order of
// every sum is that of the ranks from the key's own one on.
//
// Each part runs between two hops, which are cuts of the pass (tensor_share.hpp).
#pragma once

#include "engine/model/region.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {

class RingAttention {
 public:
  // own: the rows of this rank, of one sequence.
  RingAttention(const TensorShare& share, const kernels::AttentionShape& own)
      : rank_(share.context_rank), ranks_(share.contexts), own_(own) {}

  std::int64_t hops() const { return ranks_ - 1; }

  // In the workspace of a pass: the keys and values that are here, and sums. Offsets are in the
  // region.
  struct Forward {
    std::byte* kv = nullptr;
    float* out = nullptr;
    std::uint64_t kv_begin = 0;
  };
  struct Backward {
    std::byte* kv = nullptr;
    float *dkv = nullptr, *dq = nullptr;
    std::uint64_t kv_begin = 0, dkv_begin = 0;
  };
  Forward take_forward(Region& region) const;
  Backward take_backward(Region& region) const;
  std::uint64_t scratch_bytes(const kernels::Kernels& kernels) const;

  // The cuts of hop k, in 1 to hops(), before the part of that number; backward also one of the
  // gradients after the last part, as hop hops() + 1.
  std::vector<schedule::Cut> forward_cuts(const Forward& room, schedule::PartMask parts) const;
  std::vector<schedule::Cut> backward_cuts(const Backward& room, std::int64_t hop) const;

  // Rotates the rank's rows by their positions.
  void rope(kernels::Kernels& kernels, float base, bool inverse, std::byte* qkv) const;

  // Attends to the keys that hop k has brought, 0 for the rank's own, in this order. The last part
  // rounds to `out`.
  void forward(kernels::Kernels& kernels, std::int64_t hop, const std::byte* qkv,
               const Forward& room, float* log_sum_exp, std::byte* out, std::byte* scratch) const;
  // The gradients' terms of the keys that hop k has brought, 1 to hops(); then hops() + 1 for those
  // of the rank's own keys, which writes dqkv and leaves nothing in dout. start_backward() stands
  // before the first hop.
  struct BackwardInputs {
    std::byte* dout;
    const std::byte *qkv, *out;
    const float* log_sum_exp;
  };
  void start_backward(kernels::Kernels& kernels, const std::byte* qkv, const Backward& room) const;
  void backward(kernels::Kernels& kernels, std::int64_t hop, const BackwardInputs& from,
                const Backward& room, std::byte* dqkv, std::byte* scratch) const;

 private:
  // A rectangle of scores, and its first query and key among the rows of two ranks.
  struct Part {
    kernels::AttentionPart shape;
    std::int64_t first_query = 0;
  };
  Part part_of(std::int64_t hop) const;
  void copy_keys(kernels::Kernels& kernels, const std::byte* qkv, std::byte* kv) const;

  std::int64_t kv_cols() const { return 2 * own_.kv_heads * own_.head_dim; }
  std::int64_t q_cols() const { return own_.heads * own_.head_dim; }
  std::int64_t qkv_cols() const { return q_cols() + kv_cols(); }
  // Bytes of rows of so many columns.
  std::uint64_t bytes(std::int64_t cols, std::int64_t rows, DType dtype) const {
    return static_cast<std::uint64_t>(rows * cols) * dtype_bytes(dtype);
  }

  std::int64_t rank_, ranks_;
  kernels::AttentionShape own_;
};

}  // namespace sluice::model
