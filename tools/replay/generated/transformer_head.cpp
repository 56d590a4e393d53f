// The two ends of a model: embedding, and projection to the vocabulary with the loss.
#include "tools/replay/generated/transformer_pass.hpp"

namespace sluice::replay::generated {

PassInputs TransformerPass::begin_inputs() {
  const std::uint64_t tokens = batch_.tokens();
  PassInputs inputs;
  inputs.ids = recorder_.alloc(tokens * 8, Category::kExternal, "input.ids");
  inputs.labels = recorder_.alloc(tokens * 8, Category::kExternal, "input.labels");
  return inputs;
}

void TransformerPass::end_inputs(PassInputs& inputs) {
  recorder_.free(inputs.ids);
  recorder_.free(inputs.labels);
  for (BufferId& one : inputs.positions) recorder_.free(one);
}

BufferId TransformerPass::forward_embedding(PassInputs& inputs) {
  const std::uint64_t bytes = batch_.tokens() * shape_.hidden * shape_.element_bytes;
  BufferId range = activation(batch_.sequence * 8, "positions.ids");
  BufferId stream = activation(bytes, "embedding");
  if (shape_.is_gated) {
    const std::uint64_t table_bytes = batch_.sequence * shape_.head_size() * 4;
    BufferId angles = activation(table_bytes / 2, "positions.angles");
    BufferId doubled = activation(table_bytes, "positions.angles");
    recorder_.free(angles);
    for (const char* name : {"positions.cos", "positions.sin"}) {
      BufferId wide = activation(table_bytes, name);
      inputs.positions.push_back(activation(table_bytes * shape_.element_bytes / 4, name));
      recorder_.free(wide);
    }
    recorder_.free(doubled);
  } else {
    BufferId positions = activation(bytes / batch_.sequences, "positions.embedding");
    BufferId sum = activation(bytes, "embedding");
    recorder_.free(stream);
    recorder_.free(positions);
    stream = sum;
  }
  recorder_.free(range);
  return stream;
}

void TransformerPass::backward_embedding(BufferId gradient) {
  const std::uint64_t index_bytes = batch_.tokens() * 8;
  // Tokens are sorted, so that each row of the table is summed by one thread block.
  BufferId sorted = workspace(index_bytes, "embedding.sort");
  BufferId order = workspace(index_bytes, "embedding.sort");
  BufferId scratch = workspace(2 * index_bytes + 4096, "embedding.sort");
  recorder_.free(scratch);
  BufferId counts = workspace(index_bytes, "embedding.sort");
  gradient_of(0, 0, shape_.vocab * shape_.hidden, "embedding");
  recorder_.free(counts);
  recorder_.free(order);
  recorder_.free(sorted);
  recorder_.free(gradient);
}

void TransformerPass::forward_head(std::size_t unit, BufferId input, SavedHead& saved) {
  const std::uint64_t tokens = batch_.tokens();
  const std::uint64_t logits = tokens * shape_.vocab;
  saved.input = input;
  forward_norm(saved.norm, tokens, "head.norm");
  saved.logits = linear(unit, head_weight(), tokens, shape_.hidden, shape_.vocab, "head.logits");
  if (!shape_.is_fused) {
    saved.logits32 = activation(logits * 4, "loss.logits");
    recorder_.free(saved.logits);
    saved.log_probabilities = activation(logits * 4, "loss.log_softmax");
    recorder_.free(saved.logits32);
  }
  BufferId each = activation(tokens * 4, "loss.each");
  BufferId count = activation(8, "loss.count");
  saved.loss = activation(4, "loss.mean");
  recorder_.free(count);
  recorder_.free(each);
}

BufferId TransformerPass::backward_head(std::size_t unit, SavedHead& saved) {
  const std::uint64_t tokens = batch_.tokens();
  const std::uint64_t logits = tokens * shape_.vocab;
  BufferId seed_gradient = activation(4, "loss.gradient");
  BufferId scaled = activation(4, "loss.gradient");
  recorder_.free(seed_gradient);
  BufferId gradient = kNoBuffer;
  if (shape_.is_fused) {
    gradient = activation(logits * shape_.element_bytes, "loss.gradient");
  } else {
    BufferId probability_gradient = activation(logits * 4, "loss.gradient");
    BufferId wide = activation(logits * 4, "loss.gradient");
    recorder_.free(probability_gradient);
    recorder_.free(saved.log_probabilities);
    gradient = activation(logits * shape_.element_bytes, "loss.gradient");
    recorder_.free(wide);
  }
  recorder_.free(scaled);
  recorder_.free(saved.logits);
  BufferId normed = activation(tokens * shape_.hidden * shape_.element_bytes, "head.logits");
  gradient_of(unit, head_weight(), shape_.vocab * shape_.hidden, "head.weight");
  recorder_.free(gradient);
  recorder_.free(saved.norm.output);
  BufferId result = backward_norm(unit, 0, saved.norm, normed, tokens, "head.norm");
  recorder_.free(saved.input);
  recorder_.free(saved.loss);
  return result;
}

}  // namespace sluice::replay::generated
