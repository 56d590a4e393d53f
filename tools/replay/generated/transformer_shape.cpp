#include "tools/replay/generated/transformer_shape.hpp"

#include <utility>

namespace sluice::replay::generated {
namespace {

class LayoutWriter {
 public:
  LayoutWriter(BlockLayout& layout, const TransformerShape& shape)
      : layout_(layout), shape_(shape) {}

  std::uint32_t norm(const std::string& name) {
    const std::uint32_t index = add(name + ".weight", shape_.hidden);
    if (!shape_.is_gated) add(name + ".bias", shape_.hidden);
    return index;
  }
  std::uint32_t linear(const std::string& name, std::uint64_t in, std::uint64_t out) {
    const std::uint32_t index = add(name + ".weight", in * out);
    if (!shape_.is_gated) add(name + ".bias", out);
    return index;
  }

 private:
  std::uint32_t add(const std::string& name, std::uint64_t elements) {
    layout_.parameters.push_back({name, elements});
    return static_cast<std::uint32_t>(layout_.parameters.size() - 1);
  }

  BlockLayout& layout_;
  const TransformerShape& shape_;
};

}  // namespace

BlockLayout attention_layout(const TransformerShape& shape) {
  BlockLayout layout;
  LayoutWriter writer(layout, shape);
  const std::uint64_t h = shape.hidden;
  layout.norm1 = writer.norm("norm1");
  if (shape.is_gated) {
    layout.q = writer.linear("attention.q", h, h);
    layout.k = writer.linear("attention.k", h, shape.kv_hidden());
    layout.v = writer.linear("attention.v", h, shape.kv_hidden());
  } else {
    layout.q = writer.linear("attention.qkv", h, h + 2 * shape.kv_hidden());
  }
  layout.o = writer.linear("attention.o", h, h);
  layout.norm2 = writer.norm("norm2");
  return layout;
}

BlockLayout block_layout(const TransformerShape& shape) {
  BlockLayout layout = attention_layout(shape);
  LayoutWriter writer(layout, shape);
  layout.gate = writer.linear("mlp.gate", shape.hidden, shape.ffn);
  if (shape.is_gated) layout.up = writer.linear("mlp.up", shape.hidden, shape.ffn);
  layout.down = writer.linear("mlp.down", shape.ffn, shape.hidden);
  return layout;
}

std::vector<std::vector<Parameter>> model_units(const TransformerShape& shape) {
  std::vector<std::vector<Parameter>> units;
  units.push_back({{"embedding.weight", shape.vocab * shape.hidden}});
  const BlockLayout block = block_layout(shape);
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) units.push_back(block.parameters);
  std::vector<Parameter> head{{"head.norm.weight", shape.hidden}};
  if (!shape.is_gated) head.push_back({"head.norm.bias", shape.hidden});
  head.push_back({"head.weight", shape.vocab * shape.hidden});
  units.push_back(std::move(head));
  return units;
}

std::uint64_t element_count(const std::vector<Parameter>& parameters) {
  std::uint64_t count = 0;
  for (const Parameter& one : parameters) count += one.elements;
  return count;
}

std::uint64_t element_count(const std::vector<std::vector<Parameter>>& units) {
  std::uint64_t count = 0;
  for (const std::vector<Parameter>& unit : units) count += element_count(unit);
  return count;
}

std::uint64_t saved_block_bytes(const TransformerShape& shape, std::uint64_t tokens) {
  const std::uint64_t e = shape.element_bytes;
  const std::uint64_t h = shape.hidden;
  // The inputs of two norms and their outputs, q and the attention's output; k and v.
  std::uint64_t bytes = 6 * e * h + 2 * e * shape.kv_hidden();
  if (shape.is_gated) {
    bytes += 4 * e * shape.ffn;  // gate, up, act, product
  } else {
    bytes += 2 * e * shape.ffn + 2 * h;  // before and after GELU; two dropout masks
  }
  if (!shape.is_fused) bytes += 2 * (4 + e) * h;  // norms: a 32-bit copy, and the normalised
  return tokens * bytes;
}

std::uint64_t loss_peak_bytes(const TransformerShape& shape, std::uint64_t tokens) {
  // Logits and their gradient; else also 32-bit logits, log-probabilities and their gradient.
  const std::uint64_t per_logit =
      shape.is_fused ? 2 * shape.element_bytes : 2 * shape.element_bytes + 12;
  return tokens * shape.vocab * per_logit;
}

}  // namespace sluice::replay::generated
