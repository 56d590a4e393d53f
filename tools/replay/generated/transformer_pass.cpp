#include "tools/replay/generated/transformer_pass.hpp"

#include <string>

#include "base/units.hpp"

namespace sluice::replay::generated {

TransformerPass::TransformerPass(TraceRecorder& recorder, const TransformerShape& shape,
                                 GradientSink& sink, bool weight_copies)
    : recorder_(recorder),
      shape_(shape),
      sink_(sink),
      layout_(block_layout(shape)),
      weight_copies_(weight_copies) {}

BufferId TransformerPass::activation(std::uint64_t bytes, std::string_view name) {
  return recorder_.alloc(bytes, Category::kActivation, name);
}

BufferId TransformerPass::workspace(std::uint64_t bytes, std::string_view name) {
  return recorder_.alloc(bytes, Category::kWorkspace, name);
}

void TransformerPass::end_pass() {
  for (auto& [weight, copy] : copies_) recorder_.free(copy);
  copies_.clear();
}

void TransformerPass::gradient_of(std::size_t unit, std::uint32_t parameter, std::uint64_t elements,
                                  std::string_view name) {
  BufferId gradient = recorder_.alloc(elements * shape_.element_bytes, Category::kGradient, name);
  if (weight_copies_) {  // computed in 16 bits, then cast
    const auto copy = copies_.find({unit, parameter});
    if (copy != copies_.end()) {
      recorder_.free(copy->second);
      copies_.erase(copy);
    }
    const BufferId wide = recorder_.alloc(elements * 4, Category::kGradient, name);
    recorder_.free(gradient);
    gradient = wide;
  }
  sink_.accept(unit, parameter, gradient);
}

BufferId TransformerPass::linear(std::size_t unit, std::uint32_t parameter, std::uint64_t rows,
                                 std::uint64_t in, std::uint64_t out, std::string_view name) {
  if (weight_copies_ && !copies_.contains({unit, parameter})) {
    copies_[{unit, parameter}] =
        recorder_.alloc(in * out * shape_.element_bytes, Category::kWeight, name);
  }
  std::vector<BufferId> operand = scaled_operand(rows * in);
  const BufferId output = activation(rows * out * shape_.element_bytes, name);
  free_all(operand);
  return output;
}

std::vector<BufferId> TransformerPass::scaled_operand(std::uint64_t elements) {
  if (!shape_.is_scaled) return {};
  BufferId largest = workspace(4, "scaled.largest");
  const BufferId scale = workspace(4, "scaled.scale");
  recorder_.free(largest);
  return {scale, workspace(elements, "scaled.operand"), workspace(4, "scaled.inverse")};
}

void TransformerPass::free_all(std::vector<BufferId>& ids) {
  for (BufferId& id : ids) recorder_.free(id);
  ids.clear();
}

BufferId TransformerPass::linear_backward(std::size_t unit, std::uint32_t parameter,
                                          std::uint64_t rows, std::uint64_t in, std::uint64_t out,
                                          BufferId& gradient, std::string_view name) {
  std::vector<BufferId> operand = scaled_operand(rows * out);
  const BufferId input_gradient = activation(rows * in * shape_.element_bytes, name);
  gradient_of(unit, parameter, in * out, name);
  free_all(operand);
  if (!shape_.is_gated) {
    // The bias's gradient is a sum over rows: partial sums, and counters of the finished blocks.
    BufferId partials = workspace(out * 16 * 4, "bias.partials");
    BufferId counters = workspace(ceil_div(out, 32) * 4, "bias.counters");
    gradient_of(unit, parameter + 1, out, name);
    recorder_.free(counters);
    recorder_.free(partials);
  }
  recorder_.free(gradient);
  return input_gradient;
}

void TransformerPass::accumulate(BufferId& into, BufferId other) {
  if (into == kNoBuffer) {
    into = other;
  } else {
    recorder_.free(other);
  }
}

void TransformerPass::forward_norm(SavedNorm& saved, std::uint64_t rows, std::string_view name) {
  const std::uint64_t elements = rows * shape_.hidden;
  const std::string statistics = std::string(name) + ".statistics";
  if (shape_.is_fused) {
    saved.output = activation(elements * shape_.element_bytes, name);
    saved.statistics = activation(rows * (shape_.is_gated ? 4 : 8), statistics);
    return;
  }
  saved.upcast = activation(elements * 4, name);
  BufferId squares = activation(elements * 4, name);
  BufferId mean = activation(rows * 4, statistics);
  recorder_.free(squares);
  BufferId shifted = activation(rows * 4, statistics);
  recorder_.free(mean);
  saved.statistics = activation(rows * 4, statistics);
  recorder_.free(shifted);
  BufferId scaled = activation(elements * 4, name);
  saved.normalised = activation(elements * shape_.element_bytes, name);
  recorder_.free(scaled);
  saved.output = activation(elements * shape_.element_bytes, name);
}

void TransformerPass::free_norm(SavedNorm& saved) {
  recorder_.free(saved.normalised);
  recorder_.free(saved.statistics);
  recorder_.free(saved.upcast);
}

BufferId TransformerPass::backward_norm(std::size_t unit, std::uint32_t parameter, SavedNorm& saved,
                                        BufferId gradient, std::uint64_t rows,
                                        std::string_view name) {
  const std::uint64_t elements = rows * shape_.hidden;
  const std::string statistics = std::string(name) + ".statistics";
  BufferId result = kNoBuffer;
  if (shape_.is_fused) {
    result = activation(elements * shape_.element_bytes, name);
    // Partial sums of the weight's gradient: a row for each thread block.
    BufferId partials = workspace(264 * shape_.hidden * 4, statistics);
    gradient_of(unit, parameter, shape_.hidden, name);
    recorder_.free(partials);
  } else {
    BufferId scaled = activation(elements * shape_.element_bytes, name);
    BufferId product = activation(elements * shape_.element_bytes, name);
    gradient_of(unit, parameter, shape_.hidden, name);
    recorder_.free(product);
    recorder_.free(gradient);
    gradient = activation(elements * 4, name);
    recorder_.free(scaled);
    BufferId wide = activation(elements * 4, name);
    BufferId sums = activation(rows * 4, statistics);
    BufferId factors = activation(rows * 4, statistics);
    recorder_.free(sums);
    BufferId expanded = activation(elements * 4, name);
    recorder_.free(factors);
    recorder_.free(wide);
    result = activation(elements * shape_.element_bytes, name);
    recorder_.free(expanded);
  }
  if (!shape_.is_gated) gradient_of(unit, parameter + 1, shape_.hidden, name);
  recorder_.free(gradient);
  free_norm(saved);
  return result;
}

BufferId TransformerPass::dropout(BufferId input, BufferId& mask, std::string_view name) {
  if (shape_.is_gated) return input;
  const std::uint64_t elements = batch_.tokens() * shape_.hidden;
  const BufferId output = activation(elements * shape_.element_bytes, name);
  mask = activation(elements, name);
  recorder_.free(input);
  return output;
}

BufferId TransformerPass::add_residual(BufferId branch) {
  const BufferId sum =
      activation(batch_.tokens() * shape_.hidden * shape_.element_bytes, "residual");
  recorder_.free(branch);
  return sum;
}

BufferId TransformerPass::forward_block(std::size_t unit, BufferId input, SavedBlock& saved) {
  saved.middle = forward_attention(unit, input, saved);
  return forward_mlp(unit, saved.mlp);
}

BufferId TransformerPass::backward_block(std::size_t unit, BufferId gradient, SavedBlock& saved) {
  BufferId branch = backward_mlp(unit, saved.mlp);
  // Residual and branch share the gradient, so the sum needs memory of its own.
  BufferId sum = activation(batch_.tokens() * shape_.hidden * shape_.element_bytes, "residual");
  recorder_.free(branch);
  recorder_.free(gradient);
  recorder_.free(saved.middle);
  return backward_attention(unit, sum, saved);
}

BufferId TransformerPass::forward_mlp(std::size_t unit, SavedMlp& saved) {
  const std::uint64_t tokens = batch_.tokens();
  forward_norm(saved.norm, tokens, "norm2");
  saved.gate = linear(unit, layout_.gate, tokens, shape_.hidden, shape_.ffn, "mlp.gate");
  if (shape_.is_gated) {
    saved.up = linear(unit, layout_.up, tokens, shape_.hidden, shape_.ffn, "mlp.up");
  }
  const std::uint64_t inner_bytes = tokens * shape_.ffn * shape_.element_bytes;
  saved.activated = activation(inner_bytes, "mlp.activation");
  if (shape_.is_gated) {
    saved.product = activation(inner_bytes, "mlp.product");
  }
  BufferId output = linear(unit, layout_.down, tokens, shape_.ffn, shape_.hidden, "mlp.down");
  output = dropout(output, saved.dropout_mask, "mlp.dropout");
  const BufferId sum = add_residual(output);
  return sum;
}

// The gradient of its output is the residual's, which frees it.
BufferId TransformerPass::backward_mlp(std::size_t unit, SavedMlp& saved) {
  const std::uint64_t tokens = batch_.tokens();
  const std::uint64_t inner_bytes = tokens * shape_.ffn * shape_.element_bytes;
  BufferId output = kNoBuffer;
  if (!shape_.is_gated) {
    output = activation(tokens * shape_.hidden * shape_.element_bytes, "mlp.dropout");
    recorder_.free(saved.dropout_mask);
  }
  BufferId inner =
      linear_backward(unit, layout_.down, tokens, shape_.ffn, shape_.hidden, output, "mlp.down");
  BufferId up = kNoBuffer;
  if (shape_.is_gated) {
    recorder_.free(saved.product);
    up = activation(inner_bytes, "mlp.product");
    BufferId activated = activation(inner_bytes, "mlp.product");
    recorder_.free(inner);
    recorder_.free(saved.activated);
    recorder_.free(saved.up);
    inner = activated;
  }
  BufferId gate = activation(inner_bytes, "mlp.activation");
  recorder_.free(inner);
  recorder_.free(saved.activated);
  recorder_.free(saved.gate);
  BufferId normed = kNoBuffer;
  if (shape_.is_gated) {
    normed = linear_backward(unit, layout_.up, tokens, shape_.hidden, shape_.ffn, up, "mlp.up");
  }
  accumulate(normed, linear_backward(unit, layout_.gate, tokens, shape_.hidden, shape_.ffn, gate,
                                     "mlp.gate"));
  recorder_.free(saved.norm.output);
  return backward_norm(unit, layout_.norm2, saved.norm, normed, tokens, "norm2");
}

}  // namespace sluice::replay::generated
