// The sizes of a transformer: its parameters, and the bytes that a block saves for backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::replay::generated {

// A decoder. If it is gated: RMSNorm, rotary positions, SwiGLU and no biases (Llama). Otherwise:
// LayerNorm, learned positions, GELU, biases and dropout (GPT).
struct TransformerShape {
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t ffn = 0;
  std::uint64_t vocab = 0;
  std::uint64_t element_bytes = 2;
  bool is_gated = true;
  // Norm, rotation and loss are one kernel each. Otherwise they are chains of eager operations, and
  // each writes its result to memory.
  bool is_fused = true;
  // Products are in 8 bits: each activation is scaled by its largest value and copied.
  bool is_scaled = false;

  std::uint64_t head_size() const { return hidden / heads; }
  std::uint64_t kv_hidden() const { return kv_heads * head_size(); }
};

struct Batch {
  std::uint64_t sequences = 1;
  std::uint64_t sequence = 1;  // tokens of each, with padding
  std::uint64_t tokens() const { return sequences * sequence; }
};

struct Parameter {
  std::string name;
  std::uint64_t elements = 0;
};

// Indices into a block's parameters. A bias follows its weight.
struct BlockLayout {
  std::vector<Parameter> parameters;
  std::uint32_t norm1 = 0, q = 0, k = 0, v = 0, o = 0;
  std::uint32_t norm2 = 0, gate = 0, up = 0, down = 0;
};

// In a shape that is not gated, q is the fused projection to q, k and v, and gate is the MLP's
// first layer.
BlockLayout block_layout(const TransformerShape& shape);
// The attention half alone.
BlockLayout attention_layout(const TransformerShape& shape);

// The units: embedding, blocks, and head (final norm and projection to the vocabulary).
std::vector<std::vector<Parameter>> model_units(const TransformerShape& shape);

std::uint64_t element_count(const std::vector<Parameter>& parameters);
std::uint64_t element_count(const std::vector<std::vector<Parameter>>& units);

// The bytes that one block saves in forward for backward, as a closed formula. It leaves out the
// few bytes of statistics for each token. With 16 bits, dropout, ffn = 4 hidden and fused kernels
// this is 34 bytes per token and hidden element.
std::uint64_t saved_block_bytes(const TransformerShape& shape, std::uint64_t tokens);
// The peak of live bytes around the loss, in forward and backward: logits and their gradients.
std::uint64_t loss_peak_bytes(const TransformerShape& shape, std::uint64_t tokens);

}  // namespace sluice::replay::generated
