// Rules that look at whole tensors update each matrix that PyTorch's model has, although the engine
// stores Llama's q, k and v in one tensor, and gate and up in another. The reference is PyTorch's
// formulas in double precision, applied to separate matrices.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/kernels.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::model {
namespace {

using kernels::OptimizerRule;

ModelShape shape_of(ModelFamily family) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 1;
  shape.hidden = 24;
  shape.heads = 4;
  shape.kv_heads = 2;  // k and v have half the rows of q
  shape.ffn = 40;
  shape.vocab = 64;
  shape.max_seq = 8;
  return shape;
}

kernels::OptimizerOptions options_of(OptimizerRule rule) {
  kernels::OptimizerOptions options;
  options.rule = rule;
  options.weight = DType::kF32;
  return options;
}

using Matrix = std::vector<double>;  // row-major

double norm_of(const Matrix& x) {
  double squares = 0;
  for (const double number : x) squares += number * number;
  return std::sqrt(squares);
}

// x x^T of a matrix [rows, cols].
Matrix gram_of(const Matrix& x, std::size_t rows, std::size_t cols) {
  Matrix gram(rows * rows);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < rows; ++j) {
      for (std::size_t k = 0; k < cols; ++k) {
        gram[i * rows + j] += x[i * cols + k] * x[j * cols + k];
      }
    }
  }
  return gram;
}

// torch.optim.Muon's Newton-Schulz iteration, without its transposition: for tall matrices it gives
// the same numbers but for rounding.
Matrix orthogonalized(Matrix x, std::size_t rows, std::size_t cols) {
  const double norm = norm_of(x);
  for (double& number : x) number /= norm;
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = gram_of(x, rows, cols);
    const Matrix square = gram_of(gram, rows, rows);  // gram is symmetric
    Matrix next = x;
    for (double& number : next) number *= 3.4445;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < rows; ++k) {
        const double factor = -4.7750 * gram[i * rows + k] + 2.0315 * square[i * rows + k];
        for (std::size_t j = 0; j < cols; ++j) next[i * cols + j] += factor * x[k * cols + j];
      }
    }
    x = next;
  }
  return x;
}

// The first update of one matrix, from gradient g; w before becomes w after.
void muon_step(Matrix& w, const Matrix& g, std::size_t rows, std::size_t cols, double lr) {
  Matrix update = g;
  for (double& number : update) number *= 0.1 + 0.9 * 0.1;  // Nesterov momentum from zero
  update = orthogonalized(update, rows, cols);
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * scale * update[i];
}

void adafactor_step(Matrix& w, const Matrix& g, std::size_t rows, std::size_t cols, double lr) {
  const auto elems = static_cast<double>(w.size());
  Matrix by_row(rows), by_col(cols), update = g;
  double mean = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    by_row[i / cols] += g[i] * g[i] / static_cast<double>(cols);
    by_col[i % cols] += g[i] * g[i] / static_cast<double>(rows);
    mean += g[i] * g[i] / elems;
  }
  for (std::size_t i = 0; i < g.size(); ++i) {
    update[i] /= std::sqrt(by_row[i / cols] * by_col[i % cols] / mean);
  }
  const double size = std::max(1e-3, norm_of(w) / std::sqrt(elems)) * std::min(lr, 1.0);
  const double clip = std::max(1.0, norm_of(update) / std::sqrt(elems));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= size / clip * update[i];
}

// A block's parameters, and their first update by the engine's kernels through the table's
// segments.
class UpdatedBlock {
 public:
  UpdatedBlock(ModelFamily family, OptimizerRule rule)
      : model_(shape_of(family)), table_(model_, options_of(rule), 0.0, {}) {
    const std::uint64_t elems = layout().elems();
    weight_ = gradient_ = std::vector<float>(elems);
    const CounterRng random(3, stream_of("test/matrices"));
    for (const PlacedTensor& tensor : layout().tensors()) {
      // Parts of one tensor differ in size, so that sums over all of it would show.
      const double parts = static_cast<double>(tensor.spec.elems()) / 3;
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        const auto part = static_cast<float>(1 + std::floor(static_cast<double>(i) / parts));
        weight_[tensor.first_elem + i] = 0.1f * part * random.normal(tensor.first_elem + i);
        gradient_[tensor.first_elem + i] =
            0.01f * part * random.normal(elems + tensor.first_elem + i);
      }
    }
    before_ = weight_;
    update();
  }

  const UnitLayout& layout() const { return model_.units()[1].layer->layout(); }
  // The largest distance of `rows` rows of a tensor, from row `first` on, to a reference step.
  template <class Step>
  double distance(const std::string& name, std::int64_t first, std::int64_t rows,
                  const Step& step) const {
    const auto cols = static_cast<std::size_t>(tensor(name).spec.shape.back());
    const std::size_t begin = tensor(name).first_elem + static_cast<std::size_t>(first) * cols;
    const std::size_t end = begin + static_cast<std::size_t>(rows) * cols;
    Matrix w(before_.begin() + static_cast<std::ptrdiff_t>(begin),
             before_.begin() + static_cast<std::ptrdiff_t>(end));
    const Matrix g(gradient_.begin() + static_cast<std::ptrdiff_t>(begin),
                   gradient_.begin() + static_cast<std::ptrdiff_t>(end));
    step(w, g, static_cast<std::size_t>(rows), cols, kLr);
    double worst = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double apart = std::abs(static_cast<double>(weight_[begin + i]) - w[i]);
      worst = apart <= worst ? worst : apart;  // NaN is the worst
    }
    return worst;
  }

  static constexpr double kLr = 0.0625;

 private:
  const PlacedTensor& tensor(const std::string& name) const {
    for (const PlacedTensor& candidate : layout().tensors()) {
      if (candidate.spec.name == name) return candidate;
    }
    throw InternalError("no tensor " + name);
  }

  void update() {
    const auto kernels = kernels::make_host_kernels({1});
    const std::uint64_t elems = layout().elems();
    const auto segments = table_.segments(1, 0, elems);
    std::vector<float> moment1(elems), moment2(table_.tensor_state_elems(1));
    std::vector<std::byte> workspace(kernels->update_workspace_bytes(table_.options(), segments));
    kernels::UpdateBuffers buffers;
    buffers.grad = gradient_.data();
    buffers.grad_dtype = DType::kF32;
    buffers.weight = weight_.data();
    buffers.moment1 = table_.options().rule == OptimizerRule::kAdafactor ? nullptr : moment1.data();
    buffers.moment2 = moment2.data();
    buffers.elems = static_cast<std::int64_t>(elems);
    kernels::UpdateScalars scalars;
    scalars.lr = static_cast<float>(kLr);
    kernels->update(table_.options(), buffers, segments, scalars, workspace.data());
  }

  Model model_;
  ParameterTable table_;
  std::vector<float> weight_, gradient_, before_;
};

// fp32 roundings: a step moves a parameter by at most about 0.1.
constexpr double kNear = 2e-6;

TEST(LogicalMatrices, LlamasProjectionsAreUpdatedApartAsInPyTorch) {
  const UpdatedBlock muon(ModelFamily::kLlama, OptimizerRule::kMuon);
  const UpdatedBlock adafactor(ModelFamily::kLlama, OptimizerRule::kAdafactor);
  const auto expect_near = [&](const std::string& name, std::int64_t first, std::int64_t rows) {
    SCOPED_TRACE(name + " from row " + std::to_string(first));
    EXPECT_LT(muon.distance("blocks.0." + name, first, rows, muon_step), kNear);
    EXPECT_LT(adafactor.distance("blocks.0." + name, first, rows, adafactor_step), kNear);
  };
  expect_near("attention.qkv.weight", 0, 24);   // q
  expect_near("attention.qkv.weight", 24, 12);  // k
  expect_near("attention.qkv.weight", 36, 12);  // v
  expect_near("attention.output.weight", 0, 24);
  expect_near("mlp.up.weight", 0, 40);   // gate
  expect_near("mlp.up.weight", 40, 40);  // up
  expect_near("mlp.down.weight", 0, 24);
}

// transformers' GPT-2 has one Conv1D for q, k and v.
TEST(LogicalMatrices, Gpt2sProjectionIsOneMatrixAsInPyTorch) {
  const UpdatedBlock muon(ModelFamily::kGpt2, OptimizerRule::kMuon);
  const UpdatedBlock adafactor(ModelFamily::kGpt2, OptimizerRule::kAdafactor);
  EXPECT_LT(muon.distance("blocks.0.attention.qkv.weight", 0, 48, muon_step), kNear);
  EXPECT_LT(adafactor.distance("blocks.0.attention.qkv.weight", 0, 48, adafactor_step), kNear);
  EXPECT_LT(muon.distance("blocks.0.mlp.up.weight", 0, 40, muon_step), kNear);
}

// The cut depends on the rule alone, so elementwise rules keep their calls and their bits.
TEST(LogicalMatrices, ElementwiseRulesSeeStoredTensors) {
  const Model model(shape_of(ModelFamily::kLlama));
  const std::size_t tensors = model.units()[1].layer->layout().tensors().size();
  const std::uint64_t elems = model.units()[1].layer->layout().elems();
  const ParameterTable adamw(model, options_of(OptimizerRule::kAdamW), 0.1, {});
  EXPECT_EQ(adamw.segments(1, 0, elems).size(), tensors);
  const ParameterTable muon(model, options_of(OptimizerRule::kMuon), 0.1, {});
  EXPECT_EQ(muon.segments(1, 0, elems).size(), tensors + 3);
}

// Each matrix has sums of its own, and a checkpoint stores those of one tensor as one array.
TEST(LogicalMatrices, SumsOfATensorLieOneBehindTheOther) {
  const Model model(shape_of(ModelFamily::kLlama));
  const ParameterTable table(model, options_of(OptimizerRule::kAdafactor), 0.1, {});
  const auto segments = table.segments(1, 0, model.units()[1].layer->layout().elems());
  const auto qkv = table.tensor_state(1, 0);
  EXPECT_EQ(qkv.elems, (24u + 24u) + 2 * (12u + 24u));
  EXPECT_EQ(segments[0].moment2_begin, qkv.begin);
  EXPECT_EQ(segments[1].moment2_begin, qkv.begin + 48);
  EXPECT_EQ(segments[2].moment2_begin, qkv.begin + 48 + 36);
  EXPECT_GE(segments[3].moment2_begin, qkv.begin + qkv.elems);
}

// 24 * 24 + 12 * 24 elements are no multiple of the 128 that share a scale.
TEST(LogicalMatrices, RefusesEightBitMomentsOfAMatrixThatBeginsInsideABlock) {
  const Model model(shape_of(ModelFamily::kLlama));
  kernels::OptimizerOptions options = options_of(OptimizerRule::kMuon);
  options.moments = DType::kBlock8;
  const std::string text =
      testing::message_of<InputError>([&] { ParameterTable(model, options, 0.1, {}); });
  EXPECT_TRUE(testing::holds(text, "blocks.0.attention.qkv.weight"));
  EXPECT_TRUE(testing::holds(text, "optimizer.moments"));
  const ParameterTable gpt2(Model(shape_of(ModelFamily::kGpt2)), options, 0.1, {});
  EXPECT_EQ(gpt2.options().moments, DType::kBlock8);
}

// Its momentum would fit, and the run would go on to another result.
TEST(LogicalMatrices, ACheckpointOfFusedMatricesIsRefused) {
  const std::vector<std::string> overrides{
      "data.paths=[\"x\"]", "model.family=llama",  "model.layers=1",      "model.hidden=64",
      "model.heads=4",      "train.seq=8",         "train.steps=2",       "train.micro_batch=1",
      "train.accumulate=1", "memory.device=64MiB", "memory.pinned=64MiB", "memory.storage=64MiB",
      "optimizer.warmup=0", "optimizer.name=muon"};
  const config::Config config = config::parse_config("", "test", overrides);
  checkpoint::CheckpointManifest manifest;
  manifest.settings = config::result_settings(config);
  manifest.data_fingerprint = "same";
  EXPECT_NO_THROW(checkpoint::check_manifest(manifest, "run", config, "same"));
  EXPECT_EQ(manifest.settings.erase(std::string(config::kMatricesSetting)), 1u);
  const std::string text = testing::message_of<InputError>(
      [&] { checkpoint::check_manifest(manifest, "run", config, "same"); });
  EXPECT_TRUE(testing::holds(text, "q, k, v, gate and up"));
  EXPECT_TRUE(testing::holds(text, "start a new run"));
}

}  // namespace
}  // namespace sluice::model
