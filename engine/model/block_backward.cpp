// The two halves of a transformer block's backward pass.
#include "engine/model/block_layer.hpp"

namespace sluice::model {

void BlockLayer::backward_input(kernels::Kernels& kernels, const BatchShape& whole,
                                const PassBuffers& at) const {
  const BatchShape batch = share_.own_batch(whole);
  const Saved saved = cut_saved(batch, at.saved);
  Region context_region(at.context);
  const Context context = cut_context(batch, context_region);
  Region workspace(at.workspace);
  const Gradients gradients = take_gradients(batch, workspace);
  std::byte* const wide = gradients.wide;
  std::byte* const scratch = gradients.scratch;
  const DType dtype = batch.dtype;

  if (runs(at, kOutputBackward) && share_.cuts_rows()) {
    copy_own(kernels, batch, at.grad_output, context.output);
  }
  if (runs(at, kMlpBackward)) {
    const kernels::GemmShape down = linear_input(batch, shape_.hidden, ffn_);
    const std::byte* output = output_gradient(at, context);
    if (shape_.is_llama()) {
      kernels.gemm(down, output, weight(at, index_.down, dtype), nullptr, wide, scratch);
      kernels.swiglu_backward(wide, saved.up, context.up, batch.rows(), ffn_, dtype);
    } else {
      kernels.gemm_gelu_backward(down, output, weight(at, index_.down, dtype), saved.up, context.up,
                                 scratch);
    }
    kernels.gemm(linear_input(batch, up_cols(), shape_.hidden), context.up,
                 weight(at, index_.up, dtype), nullptr, context.normed2, scratch);
  }
  if (runs(at, kNorm2Backward)) {
    kernels.norm_backward_input(norm_shape(batch), own(batch, context.normed2), saved.residual,
                                weight(at, index_.norm2, dtype), saved.mean2, saved.rstd2,
                                at.grad_output, own(batch, context.residual));
  }
  if (runs(at, kAttentionBackward)) {
    kernels.gemm(linear_input(batch, shape_.hidden, attention_cols()), context.residual,
                 weight(at, index_.output, dtype), nullptr, wide, scratch);
    if (share_.exchanges_heads()) {
      to_heads(kernels, batch, {heads_}, wide, context.attention);
    }
  }
  if (share_.passes_keys()) {
    pass_keys_backward(kernels, batch, at, saved, gradients, context.qkv);
  } else if (runs(at, kHeadsBackward)) {
    kernels.attention_backward(attention_shape(batch),
                               share_.exchanges_heads() ? context.attention : wide, saved.qkv,
                               saved.attention, saved.log_sum_exp, context.qkv, scratch);
    if (shape_.is_llama()) kernels.rope(attention_shape(batch), kRopeBase, true, context.qkv);
  }
  if (runs(at, kQkvBackward)) {
    if (share_.exchanges_heads()) {
      to_rows(kernels, batch, qkv_heads(), context.qkv, context.qkv_rows);
    }
    kernels.gemm(linear_input(batch, qkv_cols(), shape_.hidden), qkv_gradient(context),
                 weight(at, index_.qkv, dtype), nullptr, context.normed1, scratch);
  }
  if (!runs(at, kEndBackward)) return;
  kernels.norm_backward_input(norm_shape(batch), own(batch, context.normed1), at.input,
                              weight(at, index_.norm1, dtype), saved.mean1, saved.rstd1,
                              own(batch, context.residual), at.grad_input);
}

void BlockLayer::backward_weight(kernels::Kernels& kernels, const BatchShape& whole,
                                 const PassBuffers& at) const {
  const BatchShape batch = share_.own_batch(whole);
  const Saved saved = cut_saved(batch, at.saved);
  Region context_region(at.context);
  const Context context = cut_context(batch, context_region);
  Region workspace(at.workspace);
  const Gathered gathered = cut_gathered(batch, workspace);
  std::byte* scratch = workspace.take(0);
  if (at.segments.has(kInputs) && share_.cuts_rows()) {
    copy_own(kernels, batch, saved.normed1, gathered.normed1);
    copy_own(kernels, batch, saved.normed2, gathered.normed2);
  }
  if (!at.segments.has(kProducts)) return;
  const DType dtype = batch.dtype;
  clear_gaps(kernels, at.grad_weights, dtype);

  const auto gradient = [&](std::int64_t out, std::int64_t in, const std::byte* dy,
                            const std::byte* x, std::size_t of, std::size_t of_bias) {
    linear_gradient(kernels, batch, at, out, in, dy, x, of, of_bias, scratch);
  };
  const bool cut = share_.cuts_rows();
  gradient(shape_.hidden, ffn_, output_gradient(at, context), saved.activated, index_.down,
           index_.down_bias);
  gradient(up_cols(), shape_.hidden, context.up, cut ? gathered.normed2 : saved.normed2, index_.up,
           index_.up_bias);
  if (share_.exchanges_heads()) {
    to_rows(kernels, batch, {heads_}, heads_of_rows(batch, saved), gathered.attention);
  }
  gradient(shape_.hidden, attention_cols(), context.residual,
           share_.exchanges_heads() ? gathered.attention : saved.attention, index_.output,
           index_.output_bias);
  gradient(qkv_cols(), shape_.hidden, qkv_gradient(context), cut ? gathered.normed1 : saved.normed1,
           index_.qkv, index_.qkv_bias);
  kernels.norm_backward_weight(
      norm_shape(batch), own(batch, context.normed2), saved.residual, saved.mean2, saved.rstd2,
      tensor(at.grad_weights, index_.norm2, dtype), bias_gradient(at, index_.norm2_bias, dtype));
  kernels.norm_backward_weight(
      norm_shape(batch), own(batch, context.normed1), at.input, saved.mean1, saved.rstd1,
      tensor(at.grad_weights, index_.norm1, dtype), bias_gradient(at, index_.norm1_bias, dtype));
}

void BlockLayer::pass_keys_backward(kernels::Kernels& kernels, const BatchShape& batch,
                                    const PassBuffers& at, const Saved& saved,
                                    const Gradients& room, std::byte* dqkv) const {
  const RingAttention attention = ring(batch);
  if (runs(at, kAttentionBackward)) attention.start_backward(kernels, saved.qkv, room.ring);
  for (std::int32_t hop = 1; hop <= hops() + 1; ++hop) {
    if (!at.segments.has(kAttentionBackward + hop)) continue;
    attention.backward(kernels, hop, {room.wide, saved.qkv, saved.attention, saved.log_sum_exp},
                       room.ring, dqkv, room.scratch);
  }
  if (!runs(at, kHeadsBackward) || !shape_.is_llama()) return;
  attention.rope(kernels, kRopeBase, true, dqkv);
}

void BlockLayer::linear_gradient(kernels::Kernels& kernels, const BatchShape& batch,
                                 const PassBuffers& at, std::int64_t out, std::int64_t in,
                                 const std::byte* grad_output, const std::byte* input,
                                 std::size_t weight_index, std::size_t bias_index,
                                 std::byte* scratch) const {
  kernels.gemm(linear_weight(batch, out, in), grad_output, input, nullptr,
               tensor(at.grad_weights, weight_index, batch.dtype), scratch);
  if (std::byte* grad = bias_gradient(at, bias_index, batch.dtype); grad != nullptr) {
    kernels.column_sum(grad_output, grad, batch.rows(), out, batch.dtype);
  }
}

}  // namespace sluice::model
