// Token embedding, with learned positions for GPT-2.
#include "base/error.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"

namespace sluice::model {
namespace {

UnitLayout embedding_layout(const ModelShape& shape) {
  std::vector<TensorSpec> tensors;
  tensors.push_back(
      {"embedding.tokens.weight", {shape.vocab, shape.hidden}, Init::kNormal, 0.02f, true});
  if (!shape.is_llama()) {
    tensors.push_back(
        {"embedding.positions.weight", {shape.max_seq, shape.hidden}, Init::kNormal, 0.02f, true});
  }
  return UnitLayout(std::move(tensors));
}

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(const ModelShape& shape)
      : Layer(embedding_layout(shape)), shape_(shape) {}

  std::vector<schedule::SavedPart> saves(const BatchShape&,
                                         const kernels::Kernels&) const override {
    return {};
  }

  PassNeeds needs(const BatchShape& batch, const kernels::Kernels& kernels) const override {
    PassNeeds needs;
    needs.output_bytes =
        static_cast<std::uint64_t>(batch.rows() * shape_.hidden) * dtype_bytes(batch.dtype);
    needs.backward_weight_workspace_bytes =
        kernels.embedding_backward_workspace_bytes(batch.rows(), shape_.vocab);
    return needs;
  }

  void forward(kernels::Kernels& kernels, const BatchShape& batch,
               const PassBuffers& at) const override {
    kernels.embedding_forward(at.tokens, tensor(at.weights, 0, batch.dtype),
                              has_positions() ? tensor(at.weights, 1, batch.dtype) : nullptr,
                              at.output, batch.rows(), batch.seq, shape_.hidden, batch.dtype);
  }

  void backward_input(kernels::Kernels&, const BatchShape&, const PassBuffers&) const override {
    throw InternalError("the embedding has no input gradient");
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& batch,
                       const PassBuffers& at) const override {
    clear_gaps(kernels, at.grad_weights, batch.dtype);
    kernels.embedding_backward(at.tokens, at.grad_output, tensor(at.grad_weights, 0, batch.dtype),
                               has_positions() ? tensor(at.grad_weights, 1, batch.dtype) : nullptr,
                               batch.rows(), batch.seq, shape_.vocab, shape_.max_seq, shape_.hidden,
                               batch.dtype, at.workspace);
  }

 private:
  bool has_positions() const { return !shape_.is_llama(); }
  ModelShape shape_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelShape& shape) {
  return std::make_unique<EmbeddingLayer>(shape);
}

}  // namespace sluice::model
