// Copies on the ranks of tensor and context groups have equal bits after each step: weights,
// masters and moments. Tensor ranks share norms, positions, the biases after a sum, and key/value
// heads where ranks outnumber them; context ranks share all. The meshes of eight ranks also train
// as one rank does.
#include <gtest/gtest.h>

#include "tests/support/held_state.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::train {
namespace {

using namespace testing;

struct CopiesCase {
  int tensor = 1;
  int context = 1;
  Overrides settings;
};

config::Config config_of(const TrainingBench& bench, const CopiesCase& at) {
  return bench.config("run",
                      tensor_model() +
                          Overrides{"model.heads=8", "model.vocab=277", "train.micro_batch=1",
                                    "optimizer.placement=after_backward"} +
                          places("pinned", "pinned", "pinned") + at.settings +
                          Overrides{"parallel.tensor=" + std::to_string(at.tensor),
                                    "parallel.context=" + std::to_string(at.context)});
}

RanksRun train_held(const config::Config& config, HeldState& held,
                    const AfterStep& before_note = {}) {
  return train_on_ranks(config, plan_of_world(config).options, kTensorSteps, {}, -1, held.devices(),
                        {}, [&](const RankStep& at) {
                          if (before_note) before_note(at);
                          held.note(at);
                        });
}

// Each element is on as many ranks as the mesh says, so all copies were compared.
void expect_all_held(const config::Config& config, const HeldState::Tensors& tensors) {
  const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
  const model::ModelShape shape = config::model_shape(config);
  std::map<std::string, model::TensorSpec> specs;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    for (const auto& tensor : model.layout(unit).tensors()) {
      specs[tensor.spec.name] = tensor.spec;
    }
  }
  const auto contexts = static_cast<int>(config.parallel.context);
  const auto sharers = std::max<int>(static_cast<int>(config.parallel.tensor / shape.kv_heads), 1);
  const std::size_t kinds = config.train.precision == config::Config::Precision::kFP32 ? 3 : 4;
  EXPECT_EQ(tensors.size(), static_cast<std::size_t>(kTensorSteps) * kinds * specs.size());
  for (const auto& [key, tensor] : tensors) {
    const std::string& name = std::get<std::string>(key);
    const model::TensorSpec& spec = specs.at(name);
    const auto on = [&](std::int64_t ranks) {
      return static_cast<std::uint64_t>(
          std::count(tensor.holders.begin(), tensor.holders.end(), static_cast<int>(ranks)));
    };
    if (!spec.is_part()) {
      EXPECT_EQ(on(config.parallel.ranks()), spec.whole_elems()) << name;
      continue;
    }
    const bool has_heads = name.find("attention.qkv") != std::string::npos;
    std::uint64_t shared = 0;
    if (has_heads && sharers > 1) {
      shared = static_cast<std::uint64_t>(2 * shape.kv_heads * shape.head_dim()) *
               spec.whole_elems() / static_cast<std::uint64_t>(spec.whole_shape.front());
      EXPECT_EQ(on(std::int64_t{contexts} * sharers), shared) << name;
    }
    EXPECT_EQ(on(contexts), spec.whole_elems() - shared) << name;
  }
}

const Overrides kGpt2{"model.family=gpt2"}, kLlama{"model.family=llama"};
const Overrides kBf16{"train.precision=bf16"}, kRows{"parallel.sequence=true"};
const Overrides kByRing{"parallel.context_attention=ring"};

TEST(Copies, HaveEqualBitsBehindEachStep) {
  const std::vector<CopiesCase> cases{
      {4, 1, kGpt2 + kRows + kBf16 + Overrides{"model.kv_heads=2"}},
      {2, 1, kGpt2 + kRows},
      {4, 1, kLlama + Overrides{"model.kv_heads=1"}},
      {1, 4, kGpt2 + kBf16},
      {1, 2, kLlama + kByRing + kBf16 + Overrides{"model.kv_heads=1"}},
      {2, 2, kGpt2 + kRows + kBf16 + Overrides{"optimizer.states=split"}}};
  for (const CopiesCase& at : sampled(cases)) {
    const TrainingBench bench;
    const config::Config config = config_of(bench, at);
    SCOPED_TRACE(std::to_string(at.tensor) + " x " + std::to_string(at.context) + ", " +
                 ::testing::PrintToString(at.settings));
    HeldState held(static_cast<int>(config.parallel.ranks()));
    train_held(config, held);
    EXPECT_EQ(held.differences(), std::vector<std::string>());
    expect_all_held(config, held.take_tensors());
  }
}

// Eight ranks that have two parts of one and four of the other.
TEST(Copies, LargeMeshesHaveThemAndTrainAsOneRankDoes) {
  const std::vector<CopiesCase> cases{{2, 4, kLlama + kRows},
                                      {4, 2, kLlama + kByRing + Overrides{"model.kv_heads=2"}},
                                      {2, 4, kGpt2 + kByRing + kRows},
                                      {4, 2, kGpt2}};
  for (const CopiesCase& at : sampled(cases)) {
    SCOPED_TRACE(std::to_string(at.tensor) + " x " + std::to_string(at.context) + ", " +
                 ::testing::PrintToString(at.settings));
    const TrainingBench bench, other;
    const RanksRecord alone =
        train_group(config_of(other, {1, 1, at.settings + Overrides{"parallel.sequence=false"}}));
    const config::Config config = config_of(bench, at);
    HeldState held(8);
    const RanksRun run = train_held(config, held);
    EXPECT_EQ(held.differences(), std::vector<std::string>());
    expect_all_held(config, held.take_tensors());
    EXPECT_EQ(run.sent_bytes, run.planned_bytes);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, run.ranks.front());
    expect_near(run.ranks.front().losses, alone.losses, 1e-5);
    expect_near(run.ranks.front().norms, alone.norms, 1e-4);
    EXPECT_NE(run.ranks.front().norms, alone.norms);
  }
}

// The last bit of one copy of one element.
TEST(Copies, ThatDifferAreFound) {
  struct Change {
    CopiesCase at;
    StateKind kind;
    std::string tensor;
  };
  const std::vector<Change> changes{
      {{2, 1, kGpt2}, StateKind::kMoment2, "blocks.1.norm2.weight"},
      {{2, 1, kGpt2}, StateKind::kWeight, "blocks.0.attention.output.bias"},
      {{1, 2, kLlama}, StateKind::kMoment1, "blocks.1.mlp.down.weight"}};
  for (const Change& change : sampled(changes)) {
    SCOPED_TRACE(change.tensor);
    const TrainingBench bench;
    HeldState held(2);
    train_held(config_of(bench, change.at), held, [&](const RankStep& at) {
      if (at.rank == 1 && at.step == 1) {
        *held.at(at, change.kind, change.tensor) ^= std::byte{1};
      }
    });
    const std::vector<std::string> found = held.differences();
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front().find("step 1, rank "), 0u) << found.front();
    EXPECT_NE(
        found.front().find(std::string(state_kind_name(change.kind)) + " of " + change.tensor),
        std::string::npos)
        << found.front();
  }
}

}  // namespace
}  // namespace sluice::train
