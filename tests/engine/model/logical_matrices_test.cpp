// Rules that look at whole tensors update each matrix that PyTorch's model has, although the engine
// stores Llama's q, k and v in one tensor, and gate and up in another: to the bits of an update of
// that matrix alone. (tests/kernels/optimizer/oracle_test.cpp compares that with torch.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/kernels.hpp"
#include "kernels/optimizer.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::model {
namespace {

using kernels::OptimizerRule;

ModelShape shape_of(ModelFamily family) {
  // k and v have half the rows of q.
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {family, 1, 24, 4, 2, 40, 64, 8};
}

kernels::OptimizerOptions options_of(OptimizerRule rule) {
  kernels::OptimizerOptions options;
  options.rule = rule;
  options.weight = DType::kF32;
  return options;
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
    update(weight_, gradient_, table_.segments(1, 0, elems), table_.tensor_state_elems(1));
  }

  const UnitLayout& layout() const { return model_.units()[1].layer->layout(); }
  // Whether `rows` rows of a tensor, from row `first` on, are what the rule makes of them alone.
  bool is_updated_alone(const std::string& name, std::int64_t first, std::int64_t rows) const {
    const std::int64_t cols = tensor(name).spec.shape.back();
    const auto begin = static_cast<std::ptrdiff_t>(tensor(name).first_elem) + first * cols;
    const std::ptrdiff_t end = begin + rows * cols;
    kernels::ParameterSegment matrix;
    matrix.end = rows * cols;
    matrix.tensor = {rows, cols, true};
    std::vector<float> alone(before_.begin() + begin, before_.begin() + end);
    std::vector<float> gradient(gradient_.begin() + begin, gradient_.begin() + end);
    update(alone, gradient, {matrix}, static_cast<std::uint64_t>(rows + cols));
    return std::equal(alone.begin(), alone.end(), weight_.begin() + begin);
  }

 private:
  const PlacedTensor& tensor(const std::string& name) const {
    for (const PlacedTensor& candidate : layout().tensors()) {
      if (candidate.spec.name == "blocks.0." + name) return candidate;
    }
    throw InternalError("no tensor " + name);
  }

  void update(std::vector<float>& weight, std::vector<float>& gradient,
              const std::vector<kernels::ParameterSegment>& segments, std::uint64_t sums) const {
    const auto kernels = kernels::make_host_kernels({1});
    std::vector<float> moment1(weight.size()), moment2(sums);
    std::vector<std::byte> workspace(kernels->update_workspace_bytes(table_.options(), segments));
    kernels::UpdateBuffers buffers;
    buffers.grad = gradient.data();
    buffers.grad_dtype = DType::kF32;
    buffers.weight = weight.data();
    buffers.moment1 = table_.options().rule == OptimizerRule::kAdafactor ? nullptr : moment1.data();
    buffers.moment2 = moment2.data();
    buffers.elems = static_cast<std::int64_t>(weight.size());
    kernels::UpdateScalars scalars;
    scalars.lr = 0.0625f;
    kernels->update(table_.options(), buffers, segments, scalars, workspace.data());
  }

  Model model_;
  ParameterTable table_;
  std::vector<float> weight_, gradient_, before_;
};

class LogicalMatrices : public ::testing::TestWithParam<OptimizerRule> {};

TEST_P(LogicalMatrices, LlamasProjectionsAreUpdatedApart) {
  const UpdatedBlock block(ModelFamily::kLlama, GetParam());
  EXPECT_TRUE(block.is_updated_alone("attention.qkv.weight", 0, 24));   // q
  EXPECT_TRUE(block.is_updated_alone("attention.qkv.weight", 24, 12));  // k
  EXPECT_TRUE(block.is_updated_alone("attention.qkv.weight", 36, 12));  // v
  EXPECT_TRUE(block.is_updated_alone("attention.output.weight", 0, 24));
  EXPECT_TRUE(block.is_updated_alone("mlp.up.weight", 0, 40));   // gate
  EXPECT_TRUE(block.is_updated_alone("mlp.up.weight", 40, 40));  // up
  EXPECT_TRUE(block.is_updated_alone("mlp.down.weight", 0, 24));
}

// transformers' GPT-2 has one Conv1D for q, k and v.
TEST_P(LogicalMatrices, Gpt2sProjectionIsOneMatrix) {
  const UpdatedBlock block(ModelFamily::kGpt2, GetParam());
  EXPECT_TRUE(block.is_updated_alone("attention.qkv.weight", 0, 48));
  EXPECT_FALSE(block.is_updated_alone("attention.qkv.weight", 0, 24));
  EXPECT_TRUE(block.is_updated_alone("mlp.up.weight", 0, 40));
}

INSTANTIATE_TEST_SUITE_P(Rules, LogicalMatrices,
                         ::testing::Values(OptimizerRule::kMuon, OptimizerRule::kAdafactor));

// The cut depends on the rule alone, so elementwise rules keep their calls and their bits.
TEST(MatrixTable, ElementwiseRulesSeeStoredTensors) {
  const Model model(shape_of(ModelFamily::kLlama));
  const std::size_t tensors = model.units()[1].layer->layout().tensors().size();
  const std::uint64_t elems = model.units()[1].layer->layout().elems();
  const ParameterTable adamw(model, options_of(OptimizerRule::kAdamW), 0.1, {});
  EXPECT_EQ(adamw.segments(1, 0, elems).size(), tensors);
  const ParameterTable muon(model, options_of(OptimizerRule::kMuon), 0.1, {});
  EXPECT_EQ(muon.segments(1, 0, elems).size(), tensors + 3);
}

// Each matrix has sums of its own, and a checkpoint stores those of one tensor as one array.
TEST(MatrixTable, SumsOfATensorLieOneBehindTheOther) {
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
TEST(MatrixTable, RefusesEightBitMomentsOfAMatrixThatBeginsInsideABlock) {
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
TEST(MatrixTable, ACheckpointOfFusedMatricesIsRefused) {
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
