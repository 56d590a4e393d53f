// Token embedding, with learned positions for GPT-2.
//
// A rank of a tensor group holds a run of the tokens. It writes zeros for all others, so that the sum
// over the ranks has every row; the first rank adds the positions.
#include "base/error.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {
namespace {

UnitLayout embedding_layout(const ModelShape& shape, const TensorShare& share) {
  std::vector<TensorSpec> tensors;
  tensors.push_back(take_tokens(
      {"embedding.tokens.weight", {shape.vocab, shape.hidden}, Init::kNormal, 0.02f, true}, share));
  if (!shape.is_llama()) {
    tensors.push_back(
        {"embedding.positions.weight", {shape.max_seq, shape.hidden}, Init::kNormal, 0.02f, true});
  }
  return UnitLayout(std::move(tensors));
}

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const ModelShape& shape, const TensorShare& share)
      : Layer(embedding_layout(shape, share)), shape_(shape), share_(share) {}

  std::vector<schedule::SavedPart> saves(const BatchShape&,
                                         const kernels::Kernels&) const override {
    return {};
  }

  PassNeeds needs(const BatchShape& batch, const kernels::Kernels& kernels) const override {
    PassNeeds needs;
    needs.output_bytes =
        static_cast<std::uint64_t>(batch.rows() * shape_.hidden) * dtype_bytes(batch.dtype);
    needs.backward_weight_workspace_bytes =
        kernels.embedding_backward_workspace_bytes(batch.rows(), share_.most_tokens(shape_.vocab));
    schedule::Cut sum;
    sum.value = schedule::CutValue::kOutput;
    sum.elems = static_cast<std::uint64_t>(batch.rows() * shape_.hidden);
    sum.dtype = batch.dtype;
    needs.segments.forward = {{sum}};
    return needs;
  }

  void forward(kernels::Kernels& kernels, const BatchShape& batch,
               const PassBuffers& at) const override {
    const bool adds_positions = has_positions() && share_.is_first();
    kernels.embedding_forward(at.tokens, tokens(), tensor(at.weights, 0, batch.dtype),
                              adds_positions ? tensor(at.weights, 1, batch.dtype) : nullptr,
                              at.output, batch.rows(), batch.seq, shape_.hidden, batch.dtype);
  }

  void backward_input(kernels::Kernels&, const BatchShape&, const PassBuffers&) const override {
    throw InternalError("the embedding has no input gradient");
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& batch,
                       const PassBuffers& at) const override {
    clear_gaps(kernels, at.grad_weights, batch.dtype);
    kernels.embedding_backward(
        at.tokens, tokens(), at.grad_output, tensor(at.grad_weights, 0, batch.dtype),
        has_positions() ? tensor(at.grad_weights, 1, batch.dtype) : nullptr, batch.rows(),
        batch.seq, shape_.max_seq, shape_.hidden, batch.dtype, at.workspace);
  }

 private:
  bool has_positions() const { return !shape_.is_llama(); }
  kernels::TokenRange tokens() const {
    return {share_.first_token(shape_.vocab), share_.tokens(shape_.vocab), shape_.vocab};
  }
  ModelShape shape_;
  TensorShare share_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelShape& shape, const TensorShare& share) {
  return std::make_unique<EmbeddingLayer>(shape, share);
}

}  // namespace sluice::model
