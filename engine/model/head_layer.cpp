// Final norm, language-model head and softmax cross-entropy.
#include "engine/model/constants.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"

namespace sluice::model {
namespace {

std::vector<TensorSpec> head_tensors(const ModelShape& shape) {
  std::vector<TensorSpec> tensors;
  tensors.push_back({"head.norm.weight", {shape.hidden}, Init::kOnes, 0.0f, false});
  if (!shape.is_llama()) {
    tensors.push_back({"head.norm.bias", {shape.hidden}, Init::kZeros, 0.0f, false});
  }
  if (!shape.tie_embeddings) {
    tensors.push_back({"head.weight", {shape.vocab, shape.hidden}, Init::kNormal, 0.02f, true});
  }
  return tensors;
}

class HeadLayer final : public Layer {
 public:
  explicit HeadLayer(const ModelShape& shape)
      : Layer(UnitLayout(head_tensors(shape))), shape_(shape) {}

  std::vector<schedule::SavedPart> saves(const BatchShape& batch,
                                         const kernels::Kernels&) const override {
    return declared_parts(batch);
  }

  PassNeeds needs(const BatchShape& batch, const kernels::Kernels& kernels) const override {
    PassNeeds needs;
    needs.saved_bytes = saved_bytes(declared_parts(batch));
    const std::uint64_t head = kernels.head_workspace_bytes(head_shape(batch));
    needs.forward_workspace_bytes = head;
    needs.backward_weight_workspace_bytes = head;
    return needs;
  }

  // Evaluation: the loss alone.
  void forward(kernels::Kernels& kernels, const BatchShape& batch,
               const PassBuffers& at) const override {
    run(kernels, batch, at, false);
  }
  void loss(kernels::Kernels& kernels, const BatchShape& batch,
            const PassBuffers& at) const override {
    run(kernels, batch, at, true);
  }

  void backward_input(kernels::Kernels& kernels, const BatchShape& batch,
                      const PassBuffers& at) const override {
    const Saved saved = cut(batch, at.saved);
    kernels.norm_backward_input(norm_shape(batch), saved.normed_grad, at.input,
                                tensor(at.weights, 0, batch.dtype), saved.mean, saved.rstd, nullptr,
                                at.grad_input);
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& batch,
                       const PassBuffers& at) const override {
    const Saved saved = cut(batch, at.saved);
    clear_gaps(kernels, at.grad_weights, batch.dtype);
    kernels.norm_backward_weight(
        norm_shape(batch), saved.normed_grad, at.input, saved.mean, saved.rstd,
        tensor(at.grad_weights, 0, batch.dtype),
        shape_.is_llama() ? nullptr : tensor(at.grad_weights, 1, batch.dtype));
    std::byte* table_grad = shape_.tie_embeddings
                                ? at.tied_grad_weights
                                : tensor(at.grad_weights, table_index(), batch.dtype);
    if (shape_.tie_embeddings) {
      // The tied gradient is padded to whole norm blocks, as the embedding unit is.
      const std::uint64_t elems = static_cast<std::uint64_t>(shape_.vocab * shape_.hidden);
      const std::uint64_t gap = round_up(elems, kLawBlockElems) - elems;
      const std::uint64_t elem_bytes = dtype_bytes(batch.dtype);
      if (gap > 0) kernels.zero(table_grad + elems * elem_bytes, gap * elem_bytes);
    }
    kernels.head_backward_weight(head_shape(batch), saved.normed, table(batch, at), at.targets,
                                 at.loss_scale, saved.log_sum_exp, table_grad, at.workspace);
  }

 private:
  struct Saved {
    std::byte* normed;
    float* mean;
    float* rstd;
    float* log_sum_exp;
    std::byte* normed_grad;
  };

  std::vector<schedule::SavedPart> declared_parts(const BatchShape& batch) const {
    const auto rows = static_cast<std::uint64_t>(batch.rows());
    const std::uint64_t hidden =
        round_up(rows * static_cast<std::uint64_t>(shape_.hidden) * dtype_bytes(batch.dtype),
                 kTensorAlignmentBytes);
    const std::uint64_t stats = round_up(rows * sizeof(float), kTensorAlignmentBytes);
    constexpr schedule::SavedFor kWeight = schedule::SavedFor::kBackwardWeight;
    return {{"head_mean", stats},
            {"head_rstd", stats},
            {"head_normed_grad", hidden},
            {"head_normed", hidden, kWeight},
            {"head_log_sum_exp", stats, kWeight}};
  }

  Saved cut(const BatchShape& batch, const SavedRanges& ranges) const {
    const std::vector<schedule::SavedPart> saved_parts = declared_parts(batch);
    SavedRegion region(saved_parts, ranges);
    Saved saved{};
    saved.mean = region.take_floats();
    saved.rstd = region.take_floats();
    saved.normed_grad = region.take();
    saved.normed = region.take();
    saved.log_sum_exp = region.take_floats();
    return saved;
  }

  std::size_t table_index() const { return shape_.is_llama() ? 1 : 2; }

  const std::byte* table(const BatchShape& batch, const PassBuffers& at) const {
    return shape_.tie_embeddings ? at.tied_weights : tensor(at.weights, table_index(), batch.dtype);
  }

  kernels::NormShape norm_shape(const BatchShape& batch) const {
    return {batch.rows(), shape_.hidden, shape_.is_llama(), kNormEpsilon, batch.dtype};
  }
  kernels::HeadShape head_shape(const BatchShape& batch) const {
    return {batch.rows(), shape_.hidden, shape_.vocab, batch.dtype};
  }

  void run(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
           bool train) const {
    const Saved saved = cut(batch, at.saved);
    kernels.norm_forward(norm_shape(batch), at.input, tensor(at.weights, 0, batch.dtype),
                         shape_.is_llama() ? nullptr : tensor(at.weights, 1, batch.dtype),
                         saved.normed, saved.mean, saved.rstd);
    kernels.head_forward(head_shape(batch), saved.normed, table(batch, at), at.targets,
                         at.loss_scale, at.loss, saved.log_sum_exp,
                         train ? saved.normed_grad : nullptr, at.workspace);
  }

  ModelShape shape_;
};

}  // namespace

std::unique_ptr<Layer> make_head_layer(const ModelShape& shape) {
  return std::make_unique<HeadLayer>(shape);
}

}  // namespace sluice::model
