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
#include "engine/checkpoint/safetensors.hpp"
#include "engine/config/shapes.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/training_example.hpp"
#include "tests/support/whole_model.hpp"

namespace sluice::model {
namespace {

using namespace testing;

constexpr float kStep = 0.02f;
// The first is relative to the directional derivative, the others to the tensor's gradient norm.
constexpr double kRelativeTolerance = 1e-3;
constexpr double kDenseNormTolerance = 1.5e-3;  // measured: at most 4e-4
constexpr double kElementNormTolerance = 2e-4;  // measured: at most 5e-5
constexpr int kElementsPerTensor = 4;

// One direction in one tensor: its elements, and the distance that each moves per unit of h.
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
  // The point moves as far along every direction.
  const float h = kStep / std::sqrt(static_cast<float>(direction.elems.size()));
  double expected = 0;
  for (std::size_t i = 0; i < direction.elems.size(); ++i) {
    expected += static_cast<double>(direction.signs[i]) *
                static_cast<double>(whole.gradient(unit, direction.elems[i]));
  }
  const double measured = derivative(whole, unit, direction, h);
  const double norm_tolerance =
      direction.elems.size() > 1 ? kDenseNormTolerance : kElementNormTolerance;
  EXPECT_NEAR(measured, expected,
              kRelativeTolerance * std::abs(expected) + norm_tolerance * gradient_norm);
}

void expect_gradients(const ModelShape& shape) {
  WholeModel whole(shape, 2, 5);
  randomize(whole);
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
  const std::int64_t kv_heads = family == ModelFamily::kLlama ? 2 : 4;
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {family, 2, 24, 4, kv_heads, 40, 37, 7, tied};
}

TEST(ModelGradient, IsTheDerivativeOfTheLoss) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(family) << ", tied " << tied);
      expect_gradients(tiny_shape(family, tied));
    }
  }
}

void load_weights(WholeModel& whole, const std::string& path) {
  const checkpoint::SafetensorsReader reader(path);
  for (std::size_t unit = 0; unit < whole.model().units().size(); ++unit) {
    for (const PlacedTensor& tensor : whole.model().units()[unit].layer->layout().tensors()) {
      const checkpoint::SafetensorsTensor* stored = reader.find(tensor.spec.name);
      ASSERT_NE(stored, nullptr) << tensor.spec.name;
      float* to = &whole.weight(unit, tensor.first_elem);
      reader.read(*stored, 0, std::as_writable_bytes(std::span(to, tensor.spec.elems())));
    }
  }
}

// The schedule's wiring: micro-batches summed, tied uses added, the norm over all tensors.
void expect_step_is_the_passes(const Overrides& model) {
  const TrainingBench bench;
  const config::Config config =
      bench.config("run", model +
                              Overrides{"model.layers=2", "model.hidden=32", "model.heads=4",
                                        "model.vocab=300", "train.seq=8", "train.micro_batch=2",
                                        "train.accumulate=2", "train.precision=fp32"} +
                              places("pinned", "storage", "storage"));
  PlannedSession session(config);
  std::filesystem::create_directories(config.log.dir);
  const std::string path = config.log.dir + "/weights.safetensors";
  session.session().state().export_weights(path);
  const train::StepOutcome step = session.step(0);

  WholeModel whole(config::model_shape(config), 2, 8);
  load_weights(whole, path);
  double loss = 0;
  std::vector<std::vector<double>> sums(whole.model().units().size());
  for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
    session.fill_tokens(microbatch, whole.tokens(), whole.targets());
    loss += whole.loss() / 2;
    whole.backward();
    for (std::size_t unit = 0; unit < sums.size(); ++unit) {
      sums[unit].resize(whole.model().units()[unit].layer->layout().elems());
      for (std::size_t i = 0; i < sums[unit].size(); ++i) {
        sums[unit][i] += static_cast<double>(whole.gradient(unit, i)) / 2;
      }
    }
  }
  double squares = 0;
  for (const auto& sum : sums) {
    for (const double value : sum) squares += value * value;
  }
  EXPECT_NEAR(step.loss, loss, 1e-6 * loss);
  EXPECT_NEAR(step.grad_norm, std::sqrt(squares), 1e-5 * step.grad_norm);
}

TEST(ModelGradient, HasTheNormOfAStepOfTheEngine) {
  for (const char* tied : {"true", "false"}) {
    SCOPED_TRACE(tied);
    const Overrides head{std::string("model.tie_embeddings=") + tied};
    expect_step_is_the_passes(head + Overrides{"model.family=gpt2"});
    expect_step_is_the_passes(head + Overrides{"model.family=llama", "model.kv_heads=2"});
  }
}

}  // namespace
}  // namespace sluice::model
