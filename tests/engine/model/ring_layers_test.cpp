// Layers of context ranks that pass keys and values round a ring, against the layers of one rank in
// fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/planner/price/priced_kernels.hpp"
#include "tests/support/tensor_group.hpp"

namespace sluice::model {
namespace {

using namespace testing;

constexpr std::int64_t kSeq = 24, kHidden = 24;

struct Case {
  ModelFamily family;
  std::int64_t ranks, kv_heads;
  bool tied;
};

ModelShape shape_of(const Case& c) {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {c.family, 2, kHidden, 4, c.kv_heads, 40, c.tied ? 37 : 64, kSeq + 1, c.tied};
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const std::int64_t ranks : {2, 3, 4}) {
      for (const std::int64_t kv_heads : {4, 1}) {
        list.push_back({family, ranks, kv_heads, (ranks + kv_heads) % 2 == 0});
      }
    }
  }
  return list;
}

std::string name_of(const Case& c) {
  return (c.family == ModelFamily::kGpt2 ? "gpt2, " : "llama, ") + std::to_string(c.ranks) +
         " ranks, " + std::to_string(c.kv_heads) + " kv heads" + (c.tied ? ", tied" : "");
}

// docs/design/tensor.md derives the elements of the hops.
TEST(RingLayers, HaveTheLossAndTheGradientsOfTheWhole) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const ModelShape shape = shape_of(c);
    WholeModel whole(shape, 1, kSeq);
    randomize(whole);
    TensorGroup group(shape, 1, kSeq, c.ranks, false, true, true);
    group.take(whole);
    const double expected = whole.loss();
    whole.backward();
    EXPECT_NEAR(group.loss(), expected, 1e-5 * expected);
    for (std::size_t rank = 1; rank < group.size(); ++rank) {
      EXPECT_EQ(group.rank(rank).last_loss(), group.rank(0).last_loss());
    }
    const auto layers = static_cast<std::uint64_t>(shape.layers);
    const auto hops = static_cast<std::uint64_t>(c.ranks - 1);
    const std::uint64_t keys =
        static_cast<std::uint64_t>(kSeq / c.ranks * 2 * c.kv_heads * shape.head_dim());
    EXPECT_EQ(group.crossed_elems(), layers * hops * keys + 1);
    group.clear_crossed_elems();
    group.backward();
    std::uint64_t gradients = c.tied ? static_cast<std::uint64_t>(shape.vocab * kHidden) : 0;
    for (std::size_t unit = 0; unit < whole.model().unit_count(); ++unit) {
      gradients += whole.model().layout(unit).elems();
    }
    EXPECT_EQ(group.crossed_elems(), layers * hops * 2 * keys + gradients);
    expect_equal_gradients(group, whole);
    EXPECT_NEAR(group.evaluate(), expected, 1e-5 * expected);
  }
}

// Two parts of each sequence, and two parts of each layer.
TEST(ContextsOfTensorGroups, HaveTheLossAndTheGradientsOfTheWhole) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const bool tied : {false, true}) {
      for (const bool sequence : {false, true}) {
        for (const bool ring : {false, true}) {
          const Case c{family, 2, ring ? 2 : 4, tied};
          SCOPED_TRACE(name_of(c) + (sequence ? ", rows cut" : "") + (ring ? ", ring" : ""));
          WholeModel whole(shape_of(c), 1, kSeq);
          randomize(whole);
          TensorGroup group(shape_of(c), 1, kSeq, {0, 2, sequence, 2, 0, ring});
          ASSERT_EQ(group.size(), 4u);
          group.take(whole);
          const double expected = whole.loss();
          whole.backward();
          EXPECT_NEAR(group.loss(), expected, 1e-5 * expected);
          for (std::size_t rank = 1; rank < group.size(); ++rank) {
            EXPECT_EQ(group.rank(rank).last_loss(), group.rank(0).last_loss());
          }
          group.backward();
          expect_equal_gradients(group, whole);
          EXPECT_NEAR(group.evaluate(), expected, 1e-5 * expected);
        }
      }
    }
  }
}

// Counts the scores that passes ask for, and computes nothing.
class ScoreCount final : public planner::PricedKernels {
 public:
  explicit ScoreCount(const planner::HardwareProfile& none) : PricedKernels(none, 1) {}
  std::int64_t scores = 0;

  void attention_part_forward(const kernels::AttentionPart& part, const void*, const void*, bool,
                              float*, float*, void*) override {
    count(part);
  }
  void attention_part_backward(const kernels::AttentionPart& part, const void*, const void*,
                               const void*, const void*, const float*, float*, float*,
                               void*) override {
    count(part);
  }

 private:
  void count(const kernels::AttentionPart& part) {
    scores +=
        part.heads * (part.causal ? part.keys * (part.keys + 1) / 2 : part.queries * part.keys);
  }
};

// A contiguous division would give the last of four ranks 1.75 times the mean.
TEST(RingLayers, AllRanksHaveAsManyScores) {
  const planner::HardwareProfile none;
  const Case c{ModelFamily::kLlama, 4, 2, false};
  const BatchShape batch{1, 64 * c.ranks, DType::kF32};
  std::vector<std::int64_t> forward, backward;
  std::byte some{};
  for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
    const Model model(shape_of(c), {0, 1, false, c.ranks, rank, true});
    PassBuffers at;
    at.weights = at.input = at.grad_output = &some;
    at.output = at.context = at.grad_input = at.workspace = &some;
    at.saved = &some;
    ScoreCount counted(none);
    model.units()[1].layer->forward(counted, batch, at);
    forward.push_back(counted.scores);
    model.units()[1].layer->backward_input(counted, batch, at);
    backward.push_back(counted.scores - forward.back());
  }
  for (const std::vector<std::int64_t>& of_ranks : {forward, backward}) {
    std::int64_t sum = 0;
    for (const std::int64_t scores : of_ranks) sum += scores;
    // All of the causal triangle, once.
    EXPECT_EQ(sum, 4 * batch.seq * (batch.seq + 1) / 2);
    const double mean = static_cast<double>(sum) / static_cast<double>(c.ranks);
    EXPECT_LE(static_cast<double>(*std::max_element(of_ranks.begin(), of_ranks.end())),
              1.02 * mean);
  }
}

}  // namespace
}  // namespace sluice::model
