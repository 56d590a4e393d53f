// A decoder-only language model as a list of units: embedding, blocks, head.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"
#include "engine/model/parameter_space.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {

enum class ModelFamily : std::uint8_t { kGpt2, kLlama };

struct ModelShape {
  ModelFamily family = ModelFamily::kGpt2;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, max_seq = 0;
  bool tie_embeddings = true;

  std::int64_t head_dim() const { return hidden / heads; }
  std::int64_t qkv_cols() const { return (heads + 2 * kv_heads) * head_dim(); }
  bool is_llama() const { return family == ModelFamily::kLlama; }
};

struct Unit {
  std::string name;  // "embedding", "blocks.0", ..., "head"
  std::unique_ptr<Layer> layer;
  bool has_input = true;  // false: the embedding (no gradient of its input)
  bool is_head = false;
  bool recomputable = false;
  std::int32_t borrows = -1;  // a unit; this one also reads its first tensor (tied head: 0)
};

// Whether each of so many ranks of a tensor group can have a part of every tensor.
bool can_share(const ModelShape& shape, std::int64_t ranks);

// Its units as a ParameterSpace are those of units(), in the same order. The units of the ranks of
// a tensor group have equal element spaces.
class Model : public ParameterSpace {
 public:
  // Precondition: the shape passed the configuration's checks. share: of the rank that holds it.
  explicit Model(const ModelShape& shape, const TensorShare& share = {});
  const ModelShape& shape() const { return shape_; }  // of the whole
  const TensorShare& share() const { return share_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  ModelShape shape_;
  TensorShare share_;
  std::vector<Unit> units_;
};

// The layers; each has its own file.
std::unique_ptr<Layer> make_embedding_layer(const ModelShape& shape, const TensorShare& share);
std::unique_ptr<Layer> make_block_layer(const ModelShape& shape, std::int64_t index,
                                        const TensorShare& share);
std::unique_ptr<Layer> make_head_layer(const ModelShape& shape, const TensorShare& share);

}  // namespace sluice::model
