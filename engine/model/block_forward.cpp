// The forward pass of a transformer block, and what a recomputation repeats of it.
#include "base/error.hpp"
#include "engine/model/block_layer.hpp"

namespace sluice::model {

void BlockLayer::forward(kernels::Kernels& kernels, const BatchShape& whole,
                         const PassBuffers& at) const {
  const BatchShape batch = share_.own_batch(whole);
  const Saved saved = cut_saved(batch, at.saved);
  make_parts(kernels, batch, at, saved, (schedule::PartMask{1} << kBlockPartCount) - 1);
  Region workspace(at.workspace);
  std::byte* projected = workspace.take(act(batch, shape_.hidden));
  std::byte* scratch = take_rows(batch, workspace).scratch;
  if (runs(at, kMlp)) {
    kernels.gemm(linear(batch, shape_.hidden, ffn_), saved.activated,
                 weight(at, index_.down, batch.dtype), summed_bias(at, index_.down_bias, batch),
                 projected, scratch);
  }
  if (!runs(at, kEnd)) return;
  kernels.add(saved.residual, own(batch, projected), at.output, own_elems(batch), batch.dtype);
}

void BlockLayer::recompute(kernels::Kernels& kernels, const BatchShape& whole,
                           const PassBuffers& at) const {
  const BatchShape batch = share_.own_batch(whole);
  // With its output, a recompute is the forward pass. Only the last segment has the output; one
  // that ends before it stands before the sum that the output is made of.
  const bool makes_output = at.output != nullptr || at.segments.end == place_of(kEnd);
  if (makes_output) return forward(kernels, whole, at);
  make_parts(kernels, batch, at, cut_saved(batch, at.saved), at.remade);
}

void BlockLayer::make_parts(kernels::Kernels& kernels, const BatchShape& batch,
                            const PassBuffers& at, const Saved& saved,
                            schedule::PartMask wanted) const {
  const auto wants = [&](BlockPart part) { return (wanted & schedule::part_bit(part)) != 0; };
  Region workspace(at.workspace);
  std::byte* projected = workspace.take(act(batch, shape_.hidden));
  const Rows rows = take_rows(batch, workspace);
  std::byte* const scratch = rows.scratch;
  const DType dtype = batch.dtype;
  const bool cut = share_.cuts_rows();
  if (runs(at, kNorm1)) {
    if (wants(kNormed1)) {
      kernels.norm_forward(norm_shape(batch), at.input, weight(at, index_.norm1, dtype),
                           bias(at, index_.norm1_bias, dtype), saved.normed1, saved.mean1,
                           saved.rstd1);
    }
    if (cut && wants(kQkv)) copy_own(kernels, batch, saved.normed1, projected);
  }
  make_attention(kernels, batch, at, saved, wanted, projected, rows);
  if (runs(at, kNorm2)) {
    if (wants(kResidual)) {
      kernels.add(at.input, own(batch, projected), saved.residual, own_elems(batch), dtype);
    }
    if (wants(kNormed2)) {
      kernels.norm_forward(norm_shape(batch), saved.residual, weight(at, index_.norm2, dtype),
                           bias(at, index_.norm2_bias, dtype), saved.normed2, saved.mean2,
                           saved.rstd2);
    }
    if (cut && wants(kMlpUp)) copy_own(kernels, batch, saved.normed2, projected);
  }
  if (!runs(at, kMlp)) return;
  make_mlp(kernels, batch, at, saved, cut ? projected : saved.normed2, wants(kMlpUp),
           wants(kMlpHidden), scratch);
}

void BlockLayer::make_attention(kernels::Kernels& kernels, const BatchShape& batch,
                                const PassBuffers& at, const Saved& saved,
                                schedule::PartMask wanted, std::byte* projected,
                                const Rows& room) const {
  const auto wants = [&](BlockPart part) { return (wanted & schedule::part_bit(part)) != 0; };
  const DType dtype = batch.dtype;
  const bool cut = share_.exchanges_heads();
  std::byte* const scratch = room.scratch;
  if (runs(at, kQkvProduct) && wants(kQkv)) {
    kernels.gemm(linear(batch, qkv_cols(), shape_.hidden),
                 share_.cuts_rows() ? projected : saved.normed1, weight(at, index_.qkv, dtype),
                 bias(at, index_.qkv_bias, dtype), cut ? room.rows : saved.qkv, scratch);
    if (cut) to_heads(kernels, batch, qkv_heads(), room.rows, saved.qkv);
  }
  if (share_.passes_keys()) {
    pass_keys(kernels, batch, at, saved, wanted, room);
  } else if (runs(at, kHeads)) {
    if (wants(kQkv) && shape_.is_llama()) {
      kernels.rope(attention_shape(batch), kRopeBase, false, saved.qkv);
    }
    if (wants(kAttention)) {
      kernels.attention_forward(attention_shape(batch), saved.qkv, saved.attention,
                                saved.log_sum_exp, scratch);
      if (cut) {
        kernels.cast(saved.attention, dtype, heads_of_rows(batch, saved), dtype, false,
                     batch.rows() * attention_cols());
      }
    }
  }
  if (!runs(at, kOutputProduct) || !wants(kResidual)) return;
  if (cut) to_rows(kernels, batch, {heads_}, heads_of_rows(batch, saved), room.rows);
  kernels.gemm(linear(batch, shape_.hidden, attention_cols()), cut ? room.rows : saved.attention,
               weight(at, index_.output, dtype), summed_bias(at, index_.output_bias, batch),
               projected, scratch);
}

void BlockLayer::pass_keys(kernels::Kernels& kernels, const BatchShape& batch,
                           const PassBuffers& at, const Saved& saved, schedule::PartMask wanted,
                           const Rows& room) const {
  const RingAttention attention = ring(batch);
  if (runs(at, kQkvProduct) && shape_.is_llama() && (wanted & schedule::part_bit(kQkv)) != 0) {
    attention.rope(kernels, kRopeBase, false, saved.qkv);
  }
  if ((wanted & schedule::part_bit(kAttention)) == 0) return;
  for (std::int32_t hop = 0; hop <= hops(); ++hop) {
    if (!at.segments.has(kQkvProduct + hop)) continue;
    attention.forward(kernels, hop, saved.qkv, room.ring, saved.log_sum_exp, saved.attention,
                      room.scratch);
  }
}

void BlockLayer::make_mlp(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                          const Saved& saved, const std::byte* input, bool wants_up,
                          bool wants_hidden, std::byte* scratch) const {
  const DType dtype = batch.dtype;
  const kernels::GemmShape up = linear(batch, up_cols(), shape_.hidden);
  if (shape_.is_llama()) {
    if (wants_up) {
      kernels.gemm(up, input, weight(at, index_.up, dtype), nullptr, saved.up, scratch);
    }
    if (wants_hidden) {
      kernels.swiglu_forward(saved.up, saved.activated, batch.rows(), ffn_, dtype);
    }
  } else if (wants_up) {
    kernels.gemm_gelu(up, input, weight(at, index_.up, dtype), bias(at, index_.up_bias, dtype),
                      saved.up, saved.activated, scratch);
  } else if (wants_hidden) {
    SLUICE_CHECK(kernels.gelu_reads_rounded(dtype));
    kernels.gelu_forward(saved.up, saved.activated, batch.rows() * ffn_, dtype);
  }
}

}  // namespace sluice::model
