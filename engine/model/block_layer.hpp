// The layer of a transformer block, pre-norm: x + attention(norm(x)), then r + mlp(norm(r)).
//
// GPT-2: LayerNorm, biases, GELU. Llama: RMSNorm, no biases, rotary positions, SwiGLU. Both may
// share key/value heads among query heads.
//
// A rank of a tensor group has some heads and some columns of the MLP. The qkv and up products are
// column-parallel, those of output and down row-parallel. So a pass has two sums over the ranks:
// forward after the row-parallel products, backward after the gradients of the column-parallel
// ones' inputs. The weight gradients need no other rank, but for those of key/value heads that
// several ranks hold: these are added among them.
//
// A rank that has only its part of the rows gathers all of them in front of each product, and gets
// its part of each sum. It gathers the norms' outputs once more for the weight gradients, and adds
// the gradients of the norms' weights with the other ranks.
//
// A rank of a context group has all weights and a part of each sequence. For attention the ranks
// exchange rows of some heads for heads of their rows, and back, or pass keys and values round a
// ring (ring_attention.hpp); gradients are summed over them.
//
// Its sources: the tensors (block_plan), the buffers and the cuts of its passes (block_buffers,
// block_segments), and the passes (block_forward, block_backward).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/block_plan.hpp"
#include "engine/model/constants.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"
#include "engine/model/ring_attention.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {

class BlockLayer final : public Layer {
 public:
  BlockLayer(const ModelShape& shape, BlockPlan plan, const TensorShare& share)
      : Layer(UnitLayout(std::move(plan.tensors))),
        shape_(shape),
        index_(plan.at),
        share_(share),
        heads_(share.part(shape.heads)),
        kv_heads_(share.kv_part(shape.kv_heads)),
        ffn_(share.part(shape.ffn)) {}

  std::vector<schedule::SavedPart> saves(const BatchShape& whole,
                                         const kernels::Kernels& kernels) const override;
  PassNeeds needs(const BatchShape& whole, const kernels::Kernels& kernels) const override;
  void forward(kernels::Kernels& kernels, const BatchShape& whole,
               const PassBuffers& at) const override;
  void recompute(kernels::Kernels& kernels, const BatchShape& whole,
                 const PassBuffers& at) const override;
  void backward_input(kernels::Kernels& kernels, const BatchShape& whole,
                      const PassBuffers& at) const override;
  void backward_weight(kernels::Kernels& kernels, const BatchShape& whole,
                       const PassBuffers& at) const override;

 private:
  // The segments of a forward pass, of BackwardInput, and of BackwardWeight.
  enum Segment : std::int32_t { kNorm1, kQkvProduct, kHeads, kOutputProduct, kNorm2, kMlp, kEnd };
  enum BackwardSegment : std::int32_t {
    kOutputBackward,
    kMlpBackward,
    kNorm2Backward,
    kAttentionBackward,
    kHeadsBackward,
    kQkvBackward,
    kEndBackward
  };
  enum WeightSegment : std::int32_t { kInputs, kProducts };
  // Ranks that pass keys round a ring have segments for its hops. The last part of a forward pass
  // ends in kHeads, and the first part of a backward pass begins after the hop that follows
  // kAttentionBackward.
  std::int32_t hops() const {
    return share_.passes_keys() ? static_cast<std::int32_t>(share_.contexts) - 1 : 0;
  }
  std::int32_t place_of(Segment segment) const {
    return segment < kHeads || hops() == 0 ? segment : segment + hops() - 1;
  }
  std::int32_t place_of(BackwardSegment segment) const {
    return segment < kHeadsBackward ? segment : segment + hops();
  }
  template <typename AnySegment>
  bool runs(const PassBuffers& at, AnySegment segment) const {
    return at.segments.has(place_of(segment));
  }
  RingAttention ring(const BatchShape& batch) const { return {share_, attention_shape(batch)}; }

  struct Saved {
    std::byte *normed1, *qkv, *attention, *residual, *normed2, *up, *activated;
    float *mean1, *rstd1, *log_sum_exp, *mean2, *rstd2;
  };
  // The gradients that BackwardWeight needs: those of each linear layer's and each norm's output.
  // If rows are cut, also that of the output, of all rows.
  struct Context {
    std::byte *up, *normed2, *residual, *qkv, *normed1, *output, *attention, *qkv_rows;
    // In the region.
    std::uint64_t normed2_begin, residual_begin, qkv_begin, normed1_begin, output_begin,
        attention_begin;
  };
  // In BackwardWeight's workspace: the norms' outputs of all rows, if rows are cut.
  struct Gathered {
    std::byte *normed1, *normed2, *attention;
    std::uint64_t normed1_begin, normed2_begin;
  };
  // In a forward pass's workspace after the product: qkv or attention's output of the rank's rows,
  // if heads are exchanged, or the ring's.
  struct Rows {
    std::byte *rows, *scratch;
    RingAttention::Forward ring;
  };
  Rows take_rows(const BatchShape& batch, Region& workspace) const;
  // In BackwardInput's workspace: the gradient of SwiGLU's or of attention's output, and the
  // ring's.
  struct Gradients {
    std::byte *wide, *scratch;
    RingAttention::Backward ring;
  };
  Gradients take_gradients(const BatchShape& batch, Region& workspace) const;
  std::uint64_t gradients_workspace_bytes(const BatchShape& batch) const;
  std::uint64_t rows_bytes(const BatchShape& batch) const;

  std::vector<schedule::SavedPart> declared_parts(const BatchShape& batch) const;

  // All cuts but those of the norms' gradients are of [rows, hidden] elements. Outputs of the
  // row-parallel products and inputs of the column-parallel ones lie at the start of the workspace,
  // the gradients of these in the context. context: with a null base.
  schedule::UnitSegments declared_segments(const BatchShape& batch, const Context& context) const;
  // The hops of the ring, after the segments that make what they pass on.
  void add_hops(const BatchShape& batch, schedule::UnitSegments& segments) const;
  static std::uint64_t saved_begin(const std::vector<schedule::SavedPart>& parts, BlockPart part) {
    std::uint64_t begin = 0;
    for (std::size_t before = 0; before < part; ++before) begin += parts[before].bytes;
    return begin;
  }
  // The gradients of the norms' weights, which the ranks of cut rows have of their rows.
  std::vector<schedule::Cut> norm_sums(const BatchShape& batch) const;
  // The gradients of key/value heads that several ranks hold, each of its own query heads.
  std::vector<schedule::Cut> copy_sums(const BatchShape& batch) const;

  // Makes the wanted parts, each from the parts before it. The others are there already, as far as
  // a wanted part is made from them.
  void make_parts(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                  const Saved& saved, schedule::PartMask wanted) const;

  // The parts from qkv to the product of the residual, which stays in `projected`. Gathered rows
  // lie there before.
  void make_attention(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                      const Saved& saved, schedule::PartMask wanted, std::byte* projected,
                      const Rows& room) const;

  // Attention of the rank's rows, a part after each hop; that to its own keys comes before the
  // first.
  void pass_keys(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                 const Saved& saved, schedule::PartMask wanted, const Rows& room) const;
  void pass_keys_backward(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                          const Saved& saved, const Gradients& room, std::byte* dqkv) const;

  // Heads of each section of a row: q, k and v, or attention's output.
  std::vector<std::int64_t> qkv_heads() const { return {heads_, kv_heads_, kv_heads_}; }
  // All heads of the rank's rows, from or to the parts that the context ranks exchange: part r has
  // the heads of rank r.
  void to_heads(kernels::Kernels& kernels, const BatchShape& batch,
                const std::vector<std::int64_t>& sections, const std::byte* rows,
                std::byte* parts) const;
  void to_rows(kernels::Kernels& kernels, const BatchShape& batch,
               const std::vector<std::int64_t>& sections, const std::byte* parts,
               std::byte* rows) const;
  // Calls f(first byte of the part, columns of the rows, of the part, number) for each section.
  template <typename F>
  void for_sections(const BatchShape& batch, const std::vector<std::int64_t>& sections, F f) const {
    std::int64_t heads = 0;
    for (const std::int64_t section : sections) heads += section;
    const std::int64_t width = heads * shape_.head_dim(), ranks = share_.contexts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t part = act(batch, width / ranks) * static_cast<std::uint64_t>(rank);
      std::int64_t in_rows = 0, in_part = 0;
      for (const std::int64_t section : sections) {
        const std::int64_t cols = section / ranks * shape_.head_dim();
        f(part, {in_rows + rank * cols, width}, {in_part, width / ranks}, cols);
        in_rows += section * shape_.head_dim();
        in_part += cols;
      }
    }
  }
  // The second half of the saved attention.
  std::byte* heads_of_rows(const BatchShape& batch, const Saved& saved) const {
    return saved.attention + round_up(act(batch, attention_cols()), kTensorAlignmentBytes);
  }
  const std::byte* qkv_gradient(const Context& context) const {
    return share_.exchanges_heads() ? context.qkv_rows : context.qkv;
  }

  void make_mlp(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                const Saved& saved, const std::byte* input, bool wants_up, bool wants_hidden,
                std::byte* scratch) const;

  std::uint64_t rows(const BatchShape& batch) const {
    return static_cast<std::uint64_t>(batch.rows());
  }
  std::uint64_t act(const BatchShape& batch, std::int64_t cols) const {
    return rows(batch) * static_cast<std::uint64_t>(cols) * dtype_bytes(batch.dtype);
  }
  // Rows of this rank, outside of the products.
  std::int64_t own_rows(const BatchShape& batch) const { return share_.own_rows(batch.rows()); }
  std::int64_t own_elems(const BatchShape& batch) const { return own_rows(batch) * shape_.hidden; }
  std::uint64_t own_act(const BatchShape& batch, std::int64_t cols) const {
    return static_cast<std::uint64_t>(own_rows(batch) * cols) * dtype_bytes(batch.dtype);
  }
  std::uint64_t width() const { return static_cast<std::uint64_t>(shape_.hidden); }
  std::byte* own(const BatchShape& batch, std::byte* all) const {
    return share_.own_part(all, batch.rows(), shape_.hidden, batch.dtype);
  }
  // Puts this rank's rows into their place among all rows.
  void copy_own(kernels::Kernels& kernels, const BatchShape& batch, const std::byte* rows,
                std::byte* all) const {
    kernels.cast(rows, batch.dtype, own(batch, all), batch.dtype, false, own_elems(batch));
  }
  const std::byte* output_gradient(const PassBuffers& at, const Context& context) const {
    return share_.cuts_rows() ? context.output : at.grad_output;
  }
  // Columns of this rank.
  std::int64_t up_cols() const { return shape_.is_llama() ? 2 * ffn_ : ffn_; }
  std::int64_t attention_cols() const { return heads_ * shape_.head_dim(); }
  std::int64_t qkv_cols() const { return (heads_ + 2 * kv_heads_) * shape_.head_dim(); }
  // The columns of the widest gradient that only BackwardInput holds: that of SwiGLU's output or
  // of attention's output.
  std::int64_t widest_gradient() const {
    return shape_.is_llama() ? std::max(ffn_, attention_cols()) : attention_cols();
  }

  Saved cut_saved(const BatchShape& batch, const SavedRanges& ranges) const;

  Context cut_context(const BatchShape& batch, Region& region) const;

  Gathered cut_gathered(const BatchShape& batch, Region& region) const;

  kernels::NormShape norm_shape(const BatchShape& batch) const {
    return {own_rows(batch), shape_.hidden, shape_.is_llama(), kNormEpsilon, batch.dtype};
  }
  kernels::AttentionShape attention_shape(const BatchShape& batch) const {
    const std::int64_t ranks = share_.exchanges_heads() ? share_.contexts : 1;
    return {batch.micro_batch, batch.seq * ranks, heads_ / ranks,
            kv_heads_ / ranks, shape_.head_dim(), batch.dtype};
  }

  // A linear layer with weight [out, in]: y = x w^T; dx = dy w; dw = dy^T x.
  kernels::GemmShape linear(const BatchShape& batch, std::int64_t out, std::int64_t in) const {
    return {batch.rows(), out, in, false, true, batch.dtype, batch.dtype};
  }
  kernels::GemmShape linear_input(const BatchShape& batch, std::int64_t out,
                                  std::int64_t in) const {
    return {batch.rows(), in, out, false, false, batch.dtype, batch.dtype};
  }
  kernels::GemmShape linear_weight(const BatchShape& batch, std::int64_t out,
                                   std::int64_t in) const {
    return {out, in, batch.rows(), true, false, batch.dtype, batch.dtype};
  }

  const std::byte* weight(const PassBuffers& at, std::size_t index, DType dtype) const {
    return tensor(at.weights, index, dtype);
  }
  const std::byte* bias(const PassBuffers& at, std::size_t index, DType dtype) const {
    return shape_.is_llama() ? nullptr : tensor(at.weights, index, dtype);
  }
  // The bias after a sum over the ranks, which one of them adds.
  const std::byte* summed_bias(const PassBuffers& at, std::size_t index,
                               const BatchShape& batch) const {
    return share_.is_first() ? bias(at, index, batch.dtype) : nullptr;
  }
  std::byte* bias_gradient(const PassBuffers& at, std::size_t index, DType dtype) const {
    return shape_.is_llama() ? nullptr : tensor(at.grad_weights, index, dtype);
  }

  void linear_gradient(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                       std::int64_t out, std::int64_t in, const std::byte* grad_output,
                       const std::byte* input, std::size_t weight_index, std::size_t bias_index,
                       std::byte* scratch) const;

  ModelShape shape_;  // of the whole model
  BlockTensors index_;
  TensorShare share_;
  std::int64_t heads_, kv_heads_, ffn_;  // of this rank
};

}  // namespace sluice::model
