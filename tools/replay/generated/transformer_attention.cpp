// The attention half of a block.
#include "base/units.hpp"
#include "tools/replay/generated/transformer_pass.hpp"

namespace sluice::replay::generated {

// The half-split rotation makes two halves, a concatenation, two products and their sum.
void TransformerPass::rotate(BufferId& id, std::uint64_t width, std::string_view name) {
  const std::uint64_t bytes = batch_.tokens() * width * shape_.element_bytes;
  if (shape_.is_fused) {
    const BufferId rotated = activation(bytes, name);
    recorder_.free(id);
    id = rotated;
    return;
  }
  BufferId direct = activation(bytes, name);
  BufferId negated = activation(bytes / 2, name);
  BufferId swapped = activation(bytes, name);
  recorder_.free(negated);
  BufferId crossed = activation(bytes, name);
  recorder_.free(swapped);
  const BufferId sum = activation(bytes, name);
  recorder_.free(direct);
  recorder_.free(crossed);
  recorder_.free(id);
  id = sum;
}

// Flash attention saves its output, the logarithm of each row's sum, and the generator's state.
void TransformerPass::attend(SavedAttention& saved) {
  const std::uint64_t tokens = batch_.tokens();
  saved.output = activation(tokens * shape_.hidden * shape_.element_bytes, "attention.flash");
  saved.log_sum_exp = activation(tokens * shape_.heads * 4, "attention.log_sum_exp");
  saved.rng_state = activation(16, "attention.rng_state");
  BufferId unused = activation(8, "attention.rng_state");
  recorder_.free(unused);
}

std::vector<BufferId> TransformerPass::backward_attend(SavedAttention& saved, BufferId& gradient) {
  const std::uint64_t e = shape_.element_bytes;
  const std::uint64_t tokens = batch_.tokens();
  // The kernel pads sequences to 128 rows for its sums, which are in 32 bits.
  const std::uint64_t padded = batch_.sequences * round_up(batch_.sequence, 128);
  std::vector<BufferId> gradients;
  if (shape_.is_gated) {
    gradients = {activation(tokens * shape_.hidden * e, "attention.q"),
                 activation(tokens * shape_.kv_hidden() * e, "attention.k"),
                 activation(tokens * shape_.kv_hidden() * e, "attention.v")};
  } else {
    gradients = {
        activation(tokens * (shape_.hidden + 2 * shape_.kv_hidden()) * e, "attention.qkv")};
  }
  BufferId row_sums = workspace(padded * shape_.heads * 4, "attention.flash");
  BufferId query_sums = workspace(padded * shape_.hidden * 4, "attention.flash");
  // Grouped queries: k and v have a gradient for each query head; these are then summed by group.
  const bool grouped = shape_.kv_heads < shape_.heads;
  BufferId keys = grouped ? workspace(tokens * shape_.hidden * e, "attention.flash") : kNoBuffer;
  BufferId values = grouped ? workspace(tokens * shape_.hidden * e, "attention.flash") : kNoBuffer;
  recorder_.free(row_sums);
  recorder_.free(query_sums);
  recorder_.free(keys);
  recorder_.free(values);
  recorder_.free(gradient);
  for (BufferId& one : saved.qkv) recorder_.free(one);
  recorder_.free(saved.output);
  recorder_.free(saved.log_sum_exp);
  recorder_.free(saved.rng_state);
  return gradients;
}

BufferId TransformerPass::forward_attention(std::size_t unit, BufferId input, SavedBlock& block) {
  block.input = input;
  SavedAttention& saved = block.attention;
  const std::uint64_t tokens = batch_.tokens();
  const std::uint64_t h = shape_.hidden;
  const std::uint64_t kv = shape_.kv_hidden();
  forward_norm(saved.norm, tokens, "norm1");
  if (shape_.is_gated) {
    saved.qkv = {linear(unit, layout_.q, tokens, h, h, "attention.q"),
                 linear(unit, layout_.k, tokens, h, kv, "attention.k"),
                 linear(unit, layout_.v, tokens, h, kv, "attention.v")};
    rotate(saved.qkv[0], h, "attention.rotary");
    rotate(saved.qkv[1], kv, "attention.rotary");
  } else {
    saved.qkv = {linear(unit, layout_.q, tokens, h, h + 2 * kv, "attention.qkv")};
  }
  attend(saved);
  BufferId projected = linear(unit, layout_.o, tokens, h, h, "attention.o");
  projected = dropout(projected, saved.dropout_mask, "attention.dropout");
  const BufferId sum = add_residual(projected);
  return sum;
}

BufferId TransformerPass::backward_attention(std::size_t unit, BufferId gradient,
                                             SavedBlock& block) {
  SavedAttention& saved = block.attention;
  const std::uint64_t tokens = batch_.tokens();
  const std::uint64_t h = shape_.hidden;
  const std::uint64_t kv = shape_.kv_hidden();
  const std::uint64_t stream_bytes = tokens * h * shape_.element_bytes;
  BufferId projected = kNoBuffer;
  if (!shape_.is_gated) {
    projected = activation(stream_bytes, "attention.dropout");
    recorder_.free(saved.dropout_mask);
  }
  BufferId attended = linear_backward(unit, layout_.o, tokens, h, h, projected, "attention.o");
  std::vector<BufferId> qkv = backward_attend(saved, attended);
  BufferId normed = kNoBuffer;
  if (shape_.is_gated) {
    rotate(qkv[1], kv, "attention.rotary");
    rotate(qkv[0], h, "attention.rotary");
    normed = activation(stream_bytes, "attention.v");
    gradient_of(unit, layout_.v, h * kv, "attention.v");
    recorder_.free(qkv[2]);
    accumulate(normed, linear_backward(unit, layout_.k, tokens, h, kv, qkv[1], "attention.k"));
    accumulate(normed, linear_backward(unit, layout_.q, tokens, h, h, qkv[0], "attention.q"));
  } else {
    normed = linear_backward(unit, layout_.q, tokens, h, h + 2 * kv, qkv[0], "attention.qkv");
  }
  recorder_.free(saved.norm.output);
  BufferId branch = backward_norm(unit, layout_.norm1, saved.norm, normed, tokens, "norm1");
  const BufferId sum = activation(stream_bytes, "residual");
  recorder_.free(branch);
  recorder_.free(gradient);
  recorder_.free(block.input);
  return sum;
}

}  // namespace sluice::replay::generated
