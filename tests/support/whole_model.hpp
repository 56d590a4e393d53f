// All of a model's passes in fp32, one after another in plain memory: a reference for gradients.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "engine/model/model.hpp"

namespace sluice::testing {

class AlignedFloats {
 public:
  explicit AlignedFloats(std::uint64_t bytes = 0)
      : storage_(bytes / sizeof(float) + 2 * kTensorAlignmentBytes / sizeof(float), 0.0f) {}
  float* at() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    const std::uintptr_t aligned = round_up(address, kTensorAlignmentBytes);
    return storage_.data() + (aligned - address) / sizeof(float);
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(at()); }

 private:
  std::vector<float> storage_;
};

// Buffers of every unit, forward and backward, for one micro-batch. Weights start at zero.
class WholeModel {
 public:
  // microbatches: over whose rows the loss is a mean, for gradients. share: the part of a rank.
  WholeModel(const model::ModelShape& shape, std::int64_t micro_batch, std::int64_t seq,
             std::int64_t microbatches = 1, const model::TensorShare& share = {})
      : microbatches_(microbatches),
        model_(shape, share),
        batch_{micro_batch, seq, DType::kF32},
        kernels_(kernels::make_host_kernels({1})),
        tokens_(rows()),
        targets_(rows()) {
    std::uint64_t workspace_bytes = 0;
    for (const model::Unit& unit : model_.units()) {
      const model::PassNeeds needs = unit.layer->needs(batch_, *kernels_);
      const std::uint64_t window_bytes = unit.layer->layout().elems() * sizeof(float);
      weights_.emplace_back(window_bytes);
      gradients_.emplace_back(window_bytes);
      outputs_.emplace_back(needs.output_bytes);
      grad_outputs_.emplace_back(needs.output_bytes);
      saved_.emplace_back(needs.saved_bytes);
      contexts_.emplace_back(needs.context_bytes);
      for (const std::uint64_t bytes :
           {needs.forward_workspace_bytes, needs.backward_input_workspace_bytes,
            needs.backward_weight_workspace_bytes}) {
        workspace_bytes = std::max(workspace_bytes, bytes);
      }
    }
    tied_gradient_ = AlignedFloats(model_.units().front().layer->layout().elems() * sizeof(float));
    workspace_ = AlignedFloats(workspace_bytes);
  }

  const model::Model& model() const { return model_; }
  kernels::Kernels& kernels() { return *kernels_; }
  std::byte* weights(std::size_t unit) { return weights_[unit].bytes(); }
  std::byte* gradients(std::size_t unit) { return gradients_[unit].bytes(); }
  float& weight(std::size_t unit, std::uint64_t elem) { return weights_[unit].at()[elem]; }
  std::int32_t* tokens() { return tokens_.data(); }
  std::int32_t* targets() { return targets_.data(); }
  std::size_t rows() const { return static_cast<std::size_t>(batch_.rows()); }
  // Valid after backward().
  float gradient(std::size_t unit, std::uint64_t elem) { return gradients_[unit].at()[elem]; }

  // Mean loss over the rows.
  double loss() {
    for (std::size_t unit = 0; unit < units(); ++unit) {
      const model::PassBuffers at = buffers(unit);
      const model::Layer& layer = *model_.units()[unit].layer;
      if (model_.units()[unit].is_head) {
        layer.loss(*kernels_, batch_, at);
      } else {
        layer.forward(*kernels_, batch_, at);
      }
    }
    return loss_ / static_cast<double>(batch_.rows());
  }

  // Call it after loss(). A tied head's gradient is added to the embedding's.
  void backward() {
    for (std::size_t unit = units(); unit-- > 0;) {
      const model::PassBuffers at = buffers(unit);
      const model::Layer& layer = *model_.units()[unit].layer;
      if (model_.units()[unit].has_input) layer.backward_input(*kernels_, batch_, at);
      layer.backward_weight(*kernels_, batch_, at);
    }
    fold_tied_gradient();
  }
  void fold_tied_gradient() {
    if (model_.units().back().borrows < 0) return;
    const model::PlacedTensor& table = model_.units().front().layer->layout().tensors().front();
    kernels_->fold(gradients_.front().at(), tied_gradient_.at(), DType::kF32,
                   static_cast<std::int64_t>(table.spec.elems()));
  }

  const model::BatchShape& batch() const { return batch_; }
  // Mean over the rows, of the last loss pass.
  double last_loss() const { return loss_ / static_cast<double>(batch_.rows()); }

  // The addresses of all passes of a unit.
  model::PassBuffers buffers(std::size_t unit) {
    model::PassBuffers at;
    at.weights = weights_[unit].bytes();
    at.tied_weights = weights_.front().bytes();
    at.tokens = tokens_.data();
    at.targets = targets_.data();
    if (unit > 0) {
      at.input = outputs_[unit - 1].bytes();
      at.grad_input = grad_outputs_[unit - 1].bytes();
    }
    at.output = outputs_[unit].bytes();
    at.saved = saved_[unit].bytes();
    at.context = contexts_[unit].bytes();
    at.grad_output = grad_outputs_[unit].bytes();
    at.grad_weights = gradients_[unit].bytes();
    at.tied_grad_weights = tied_gradient_.bytes();
    at.loss = &loss_;
    at.loss_scale = static_cast<float>(1.0 / static_cast<double>(batch_.rows() * microbatches_));
    at.workspace = workspace_.bytes();
    return at;
  }

 private:
  std::size_t units() const { return model_.units().size(); }

  std::int64_t microbatches_;
  model::Model model_;
  model::BatchShape batch_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<AlignedFloats> weights_, gradients_, outputs_, grad_outputs_, saved_, contexts_;
  AlignedFloats tied_gradient_, workspace_;
  double loss_ = 0;
};

// Weights near those of an untrained model, and tokens and targets, all drawn.
inline void randomize(WholeModel& whole) {
  const CounterRng random(5, stream_of("test/whole_model"));
  std::uint64_t draw = 0;
  for (std::size_t unit = 0; unit < whole.model().units().size(); ++unit) {
    for (const model::PlacedTensor& tensor : whole.model().layout(unit).tensors()) {
      const float mean = tensor.spec.init == model::Init::kOnes ? 1.0f : 0.0f;
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        whole.weight(unit, tensor.first_elem + i) = mean + 0.3f * random.normal(draw++);
      }
    }
  }
  const auto vocab = static_cast<std::uint64_t>(whole.model().shape().vocab);
  for (std::size_t i = 0; i < whole.rows(); ++i) {
    whole.tokens()[i] = static_cast<std::int32_t>(random.below(draw++, vocab));
    whole.targets()[i] = static_cast<std::int32_t>(random.below(draw++, vocab));
  }
}

}  // namespace sluice::testing
