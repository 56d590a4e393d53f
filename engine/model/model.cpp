#include "engine/model/model.hpp"

#include "base/error.hpp"

namespace sluice::model {

void Layer::loss(kernels::Kernels&, const BatchShape&, const PassBuffers&) const {
  throw InternalError("this layer has no loss");
}

void Layer::recompute(kernels::Kernels&, const BatchShape&, const PassBuffers&) const {
  throw InternalError("this layer cannot be recomputed");
}

void Layer::clear_gaps(kernels::Kernels& kernels, std::byte* grad_window, DType dtype) const {
  const std::size_t elem_bytes = dtype_bytes(dtype);
  std::uint64_t cursor = 0;
  const auto clear = [&](std::uint64_t begin, std::uint64_t end) {
    if (end > begin) kernels.zero(grad_window + begin * elem_bytes, (end - begin) * elem_bytes);
  };
  for (const PlacedTensor& tensor : layout_.tensors()) {
    clear(cursor, tensor.first_elem);
    cursor = tensor.first_elem + tensor.spec.elems();
  }
  clear(cursor, layout_.elems());
}

bool can_share(const ModelShape& shape, std::int64_t ranks) {
  const bool heads = shape.kv_heads % ranks == 0 || ranks % shape.kv_heads == 0;
  return heads && shape.heads % ranks == 0 && shape.ffn % ranks == 0 && shape.vocab >= ranks;
}

Model::Model(const ModelShape& shape, const TensorShare& share) : shape_(shape), share_(share) {
  Unit embedding;
  embedding.name = "embedding";
  embedding.layer = make_embedding_layer(shape, share);
  embedding.has_input = false;
  units_.push_back(std::move(embedding));
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    Unit block;
    block.name = "blocks." + std::to_string(i);
    block.layer = make_block_layer(shape, i, share);
    block.recomputable = true;
    units_.push_back(std::move(block));
  }
  Unit head;
  head.name = "head";
  head.layer = make_head_layer(shape, share);
  head.is_head = true;
  head.borrows = shape.tie_embeddings ? 0 : -1;
  units_.push_back(std::move(head));
  for (const Unit& unit : units_) add_unit(unit.layer->layout());
}

}  // namespace sluice::model
