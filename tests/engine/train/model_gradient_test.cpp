// The gradient of the whole model, made by its layers' passes in fp32, against finite differences
// of its loss.
//
// Five-point differences, h = 0.02: the truncation error is h^4/30 times the fifth derivative, the
// rounding error about eps_fp32 * loss / h. Weights are drawn with a standard deviation of 0.3, so
// that gradients stand far above both. Each tensor is checked along one dense direction of random
// signs (which every element takes part in) and at single elements.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "engine/model/model.hpp"

namespace sluice {
namespace {

constexpr float kStep = 0.02f;
// Of the directional derivative's own size, and of the tensor's gradient norm.
constexpr double kRelativeTolerance = 4e-3;
constexpr double kNormTolerance = 2e-3;
constexpr int kElementsPerTensor = 4;

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

// All buffers of one pass over a model, forward and backward.
class WholeModel {
 public:
  explicit WholeModel(const ModelShape& shape)
      : model_(shape), kernels_(make_host_kernels({1})), tokens_(rows()), targets_(rows()) {
    const CounterRng random(5, stream_of("test/model_gradient"));
    std::uint64_t draw = 0;
    std::uint64_t workspace_bytes = 0;
    for (const Unit& unit : model_.units()) {
      const PassNeeds needs = unit.layer->needs(batch_, *kernels_);
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
      for (const PlacedTensor& tensor : unit.layer->layout().tensors()) {
        const float mean = tensor.spec.init == Init::kOnes ? 1.0f : 0.0f;
        for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
          weights_.back().at()[tensor.first_elem + i] = mean + 0.3f * random.normal(draw++);
        }
      }
    }
    tied_gradient_ = AlignedFloats(model_.units().front().layer->layout().elems() * sizeof(float));
    workspace_ = AlignedFloats(workspace_bytes);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const auto vocab = static_cast<std::uint64_t>(shape.vocab);
      tokens_[i] = static_cast<std::int32_t>(random.below(draw++, vocab));
      targets_[i] = static_cast<std::int32_t>(random.below(draw++, vocab));
    }
  }

  const Model& model() const { return model_; }
  float& weight(std::size_t unit, std::uint64_t elem) { return weights_[unit].at()[elem]; }
  float gradient(std::size_t unit, std::uint64_t elem) { return gradients_[unit].at()[elem]; }

  // Mean loss over the rows.
  double loss() {
    for (std::size_t unit = 0; unit < units(); ++unit) {
      const PassBuffers at = buffers(unit);
      const Layer& layer = *model_.units()[unit].layer;
      if (model_.units()[unit].is_head) {
        layer.loss(*kernels_, batch_, at);
      } else {
        layer.forward(*kernels_, batch_, at);
      }
    }
    return loss_ / static_cast<double>(batch_.rows());
  }

  // After loss(). A tied head's gradient is folded into the embedding's.
  void backward() {
    for (std::size_t unit = units(); unit-- > 0;) {
      const PassBuffers at = buffers(unit);
      const Layer& layer = *model_.units()[unit].layer;
      if (model_.units()[unit].has_input) layer.backward_input(*kernels_, batch_, at);
      layer.backward_weight(*kernels_, batch_, at);
    }
    if (model_.units().back().borrows < 0) return;
    const auto& shape = model_.shape();
    kernels_->fold(gradients_.front().at(), tied_gradient_.at(), DType::kF32,
                   shape.vocab * shape.hidden);
  }

 private:
  std::size_t units() const { return model_.units().size(); }
  std::size_t rows() const { return static_cast<std::size_t>(batch_.rows()); }

  PassBuffers buffers(std::size_t unit) {
    PassBuffers at;
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
    at.loss_scale = static_cast<float>(1.0 / static_cast<double>(batch_.rows()));
    at.workspace = workspace_.bytes();
    return at;
  }

  Model model_;
  BatchShape batch_{2, 5, DType::kF32};
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<AlignedFloats> weights_, gradients_, outputs_, grad_outputs_, saved_, contexts_;
  AlignedFloats tied_gradient_, workspace_;
  double loss_ = 0;
};

// One direction in one tensor: elements and what each is moved by per unit of h.
struct Direction {
  std::vector<std::uint64_t> elems;
  std::vector<float> signs;
};

double loss_at(WholeModel& whole, std::size_t unit, const Direction& direction,
               const std::vector<float>& from, float h) {
  for (std::size_t i = 0; i < direction.elems.size(); ++i) {
    whole.weight(unit, direction.elems[i]) = from[i] + h * direction.signs[i];
  }
  return whole.loss();
}

double derivative(WholeModel& whole, std::size_t unit, const Direction& direction, float h) {
  std::vector<float> from;
  for (const std::uint64_t elem : direction.elems) from.push_back(whole.weight(unit, elem));
  const auto at = [&](float step) { return loss_at(whole, unit, direction, from, step); };
  const double value =
      (at(-2 * h) - 8 * at(-h) + 8 * at(h) - at(2 * h)) / (12.0 * static_cast<double>(h));
  at(0);
  return value;
}

void expect_derivative(WholeModel& whole, std::size_t unit, const Direction& direction,
                       double gradient_norm) {
  // Along a direction of n elements the loss is moved n times as far in the squared sense.
  const float h = kStep / std::sqrt(static_cast<float>(direction.elems.size()));
  double expected = 0;
  for (std::size_t i = 0; i < direction.elems.size(); ++i) {
    expected += static_cast<double>(direction.signs[i]) *
                static_cast<double>(whole.gradient(unit, direction.elems[i]));
  }
  const double measured = derivative(whole, unit, direction, h);
  EXPECT_NEAR(measured, expected,
              kRelativeTolerance * std::abs(expected) + kNormTolerance * gradient_norm);
}

void expect_gradients(const ModelShape& shape) {
  WholeModel whole(shape);
  EXPECT_GT(whole.loss(), 0.0);
  whole.backward();
  const CounterRng random(9, stream_of("test/model_gradient_directions"));
  std::uint64_t draw = 0;
  for (std::size_t unit = 0; unit < whole.model().units().size(); ++unit) {
    for (const PlacedTensor& tensor : whole.model().units()[unit].layer->layout().tensors()) {
      SCOPED_TRACE(tensor.spec.name);
      Direction dense;
      double squares = 0;
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        dense.elems.push_back(tensor.first_elem + i);
        dense.signs.push_back(random.below(draw++, 2) == 0 ? -1.0f : 1.0f);
        squares += std::pow(whole.gradient(unit, tensor.first_elem + i), 2.0);
      }
      const double norm = std::sqrt(squares);
      EXPECT_GT(norm, 1e-3);
      expect_derivative(whole, unit, dense, norm);
      for (int i = 0; i < kElementsPerTensor; ++i) {
        const std::uint64_t elem = tensor.first_elem + random.below(draw++, tensor.spec.elems());
        expect_derivative(whole, unit, {{elem}, {1.0f}}, norm);
      }
    }
  }
}

ModelShape tiny_shape(ModelFamily family, bool tied) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 2;
  shape.hidden = 24;
  shape.heads = 4;
  shape.kv_heads = family == ModelFamily::kLlama ? 2 : 4;
  shape.ffn = 40;
  shape.vocab = 37;
  shape.max_seq = 7;
  shape.tie_embeddings = tied;
  return shape;
}

TEST(ModelGradient, OfGpt2IsTheLossesDerivative) {
  expect_gradients(tiny_shape(ModelFamily::kGpt2, false));
}
TEST(ModelGradient, OfATiedGpt2IsTheLossesDerivative) {
  expect_gradients(tiny_shape(ModelFamily::kGpt2, true));
}
TEST(ModelGradient, OfLlamaIsTheLossesDerivative) {
  expect_gradients(tiny_shape(ModelFamily::kLlama, false));
}
TEST(ModelGradient, OfATiedLlamaIsTheLossesDerivative) {
  expect_gradients(tiny_shape(ModelFamily::kLlama, true));
}

}  // namespace
}  // namespace sluice
