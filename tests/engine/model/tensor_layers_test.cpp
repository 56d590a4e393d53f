// Layers that hold parts of a tensor group, against the layers of the whole model in fp32.
//
// Losses agree within 1e-5 and gradients within 1e-4, relative to the norm of their tensor: sums
// over ranks have another order. Values that all ranks hold have the same bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "tests/support/saved_formula.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_group.hpp"

namespace sluice::model {
namespace {

using namespace testing;

constexpr std::int64_t kMicroBatch = 2, kSeq = 6;

struct Case {
  ModelFamily family;
  std::int64_t ranks, kv_heads, vocab;
  bool tied;
  bool sequence = false;
};

ModelShape shape_of(const Case& c) {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {c.family, 2, 24, 4, c.kv_heads, 40, c.vocab, 7, c.tied};
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const bool tied : {false, true}) {
      for (const std::int64_t vocab : {256, 37}) {
        for (const bool sequence : {false, true}) {
          list.push_back({family, 2, 4, vocab, tied, sequence});
          list.push_back({family, 2, 2, vocab, tied, sequence});
          list.push_back({family, 4, 4, vocab, tied, sequence});
          // Ranks that hold copies of key/value heads.
          list.push_back({family, 4, 2, vocab, tied, sequence});
          list.push_back({family, 4, 1, vocab, tied, sequence});
        }
      }
    }
  }
  return list;
}

std::string name_of(const Case& c) {
  return (c.family == ModelFamily::kGpt2 ? "gpt2, " : "llama, ") + std::to_string(c.ranks) +
         " ranks, " + std::to_string(c.kv_heads) + " kv heads, " + std::to_string(c.vocab) +
         " tokens, " + (c.tied ? "tied" : "untied") + (c.sequence ? ", rows cut" : "");
}

TEST(TensorLayers, HaveTheLossAndTheGradientsOfTheWhole) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    WholeModel whole(shape_of(c), kMicroBatch, kSeq);
    randomize(whole);
    TensorGroup group(shape_of(c), kMicroBatch, kSeq, c.ranks, c.sequence);
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

// Ranks with parts of each sequence, and all weights.
TEST(ContextLayers, HaveTheLossAndTheGradientsOfTheWhole) {
  for (const Case& c : cases()) {
    if (c.sequence || c.kv_heads % c.ranks != 0) continue;
    SCOPED_TRACE(name_of(c));
    ModelShape shape = shape_of(c);
    shape.max_seq = 13;
    WholeModel whole(shape, 1, 12);
    randomize(whole);
    TensorGroup group(shape, 1, 12, c.ranks, false, true);
    group.take(whole);
    const double expected = whole.loss();
    whole.backward();
    EXPECT_NEAR(group.loss(), expected, 1e-5 * expected);
    // docs/design/tensor.md: q, k and v of a rank's rows, attention's output, and the loss.
    const auto layers = static_cast<std::uint64_t>(shape.layers);
    const std::uint64_t rows = 12 / static_cast<std::uint64_t>(c.ranks);
    const auto qkv = static_cast<std::uint64_t>(shape.qkv_cols());
    EXPECT_EQ(group.crossed_elems(), layers * rows * (qkv + 24) + 1);
    for (std::size_t rank = 1; rank < group.size(); ++rank) {
      EXPECT_EQ(group.rank(rank).last_loss(), group.rank(0).last_loss());
    }
    group.clear_crossed_elems();
    group.backward();
    std::uint64_t gradients = c.tied ? static_cast<std::uint64_t>(shape.vocab * 24) : 0;
    for (std::size_t unit = 0; unit < whole.model().unit_count(); ++unit) {
      gradients += whole.model().layout(unit).elems();
    }
    EXPECT_EQ(group.crossed_elems(), layers * rows * (qkv + 24) + gradients);
    expect_equal_gradients(group, whole);
    EXPECT_NEAR(group.evaluate(), expected, 1e-5 * expected);
  }
}

// Ranks with all rows of a part of the layers, with some rows, or with parts of each sequence.
TEST(TensorLayers, HandleTheVocabularyOfGpt2) {
  enum class Mode { kAllRows, kOwnRows, kSequences };
  for (const Mode mode : {Mode::kAllRows, Mode::kOwnRows, Mode::kSequences}) {
    for (const bool tied : {false, true}) {
      for (const std::int64_t ranks : {2, 4}) {
        if (samples_sweeps() && (tied || ranks == 2)) continue;
        const Case c{ModelFamily::kGpt2, ranks, 4, 50257, tied, mode == Mode::kOwnRows};
        SCOPED_TRACE(name_of(c) + ", mode " + std::to_string(static_cast<int>(mode)));
        ModelShape shape = shape_of(c);
        shape.layers = 1;
        WholeModel whole(shape, 1, 4);
        randomize(whole);
        TensorGroup group(shape, 1, 4, c.ranks, c.sequence, mode == Mode::kSequences);
        group.take(whole);
        // The first and the last token of a part, so that its borders are right.
        for (std::int64_t i = 0; i < 4; ++i) {
          const std::int32_t token = std::array<std::int32_t, 4>{12564, 12565, 25129, 50256}.at(
              static_cast<std::size_t>(i));
          for (std::size_t rank = 0; rank <= group.size(); ++rank) {
            WholeModel& model = rank < group.size() ? group.rank(rank) : whole;
            model.tokens()[i] = model.targets()[3 - i] = token;
          }
        }
        const double expected = whole.loss();
        EXPECT_NEAR(group.loss(), expected, 1e-5 * expected);
        whole.backward();
        group.backward();
        expect_equal_gradients(group, whole);
      }
    }
  }
}

// docs/design/tensor.md derives the formula. Phi = rows * hidden.
TEST(TensorLayers, CrossAsManyElementsAsTheFormulaSays) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const ModelShape shape = shape_of(c);
    TensorGroup group(shape, kMicroBatch, kSeq, c.ranks, c.sequence);
    WholeModel whole(shape, kMicroBatch, kSeq);
    randomize(whole);
    group.take(whole);
    group.loss();
    const std::uint64_t rows = kMicroBatch * kSeq, phi = rows * 24;
    const auto layers = static_cast<std::uint64_t>(shape.layers);
    // With cut rows each sum is a scatter, and there are as many gathers: one for each of them, and
    // two more of each layer, of the head and of the embedding for the weight gradients.
    const std::uint64_t forward = phi + layers * 2 * phi + phi;
    EXPECT_EQ(group.crossed_elems(),
              forward + 3 * rows + (c.sequence ? layers * 2 * phi + phi : 0));
    group.clear_crossed_elems();
    group.backward();
    const std::uint64_t norms = (2 * layers + 1) * 24 * (c.family == ModelFamily::kGpt2 ? 2 : 1);
    // Keys and values, 6 columns a head, of each group of ranks that share a head.
    const std::uint64_t copies = c.ranks <= c.kv_heads
                                     ? 0
                                     : layers * static_cast<std::uint64_t>(c.kv_heads) * 2 * 6 *
                                           (24 + (c.family == ModelFamily::kGpt2 ? 1 : 0));
    EXPECT_EQ(group.crossed_elems(),
              layers * 2 * phi + copies + (c.sequence ? layers * 4 * phi + 2 * phi + norms : 0));
  }
}

// Finite differences of the loss through the cross-entropy that ranks share. A tied table is that
// of the embedding, too.
TEST(TensorLayers, HaveTheDerivativeOfTheSharedLoss) {
  const std::vector<Case> derived{{ModelFamily::kLlama, 4, 4, 37, false},
                                  {ModelFamily::kGpt2, 2, 4, 37, false, true},
                                  {ModelFamily::kLlama, 4, 1, 256, true},
                                  {ModelFamily::kGpt2, 4, 2, 37, true, true}};
  for (const Case& c : derived) {
    SCOPED_TRACE(name_of(c));
    WholeModel whole(shape_of(c), kMicroBatch, kSeq);
    randomize(whole);
    TensorGroup group(shape_of(c), kMicroBatch, kSeq, c.ranks, c.sequence);
    group.take(whole);
    group.loss();
    group.backward();
    const std::size_t unit = c.tied ? 0 : whole.model().units().size() - 1;
    const CounterRng random(7, stream_of("test/tensor_layers_directions"));
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      WholeModel& model = group.rank(rank);
      const auto& tensors = model.model().layout(unit).tensors();
      const PlacedTensor& table = c.tied ? tensors.front() : tensors.back();
      const auto elems = table.spec.elems();
      // Along random signs, so that the derivative stands far above rounding.
      const float h = 0.02f / std::sqrt(static_cast<float>(elems));
      std::vector<float> from, signs;
      double expected = 0, norm = 0;
      for (std::uint64_t i = 0; i < elems; ++i) {
        from.push_back(model.weight(unit, table.first_elem + i));
        signs.push_back(random.below(i, 2) == 0 ? -1.0f : 1.0f);
        const auto gradient = static_cast<double>(model.gradient(unit, table.first_elem + i));
        expected += static_cast<double>(signs.back()) * gradient;
        norm += gradient * gradient;
      }
      const auto loss_at = [&](float step) {
        for (std::uint64_t i = 0; i < elems; ++i) {
          model.weight(unit, table.first_elem + i) = from[i] + step * signs[i];
        }
        return group.loss();
      };
      const double measured =
          (loss_at(-2 * h) - 8 * loss_at(-h) + 8 * loss_at(h) - loss_at(2 * h)) /
          (12.0 * static_cast<double>(h));
      loss_at(0);
      EXPECT_GT(norm, 0);
      EXPECT_NEAR(measured, expected, 1e-3 * std::abs(expected) + 1.5e-3 * std::sqrt(norm));
    }
  }
}

TEST(TensorLayers, SaveAsManyBytesAsTheFormulaSays) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const std::int64_t kv_heads : {8, 2}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const ModelShape shape{family, 1, 256, 8, kv_heads, 512, 64, 64, true};
        // Rows and columns of whole 256 bytes on every rank, so that no part is padded.
        const BatchShape batch{4, 64, dtype};
        const auto kernels = kernels::make_host_kernels({1});
        const auto saved = [&](std::int64_t ranks, bool sequence) {
          const Model model(shape, {0, ranks, sequence});
          return model.units()[1].layer->needs(batch, *kernels).saved_bytes;
        };
        const std::uint64_t alone = saved(1, false);
        EXPECT_EQ(alone, saved_formula(shape, batch, 1, false));
        for (const std::int64_t ranks : {2, 4}) {
          for (const bool sequence : {false, true}) {
            EXPECT_EQ(saved(ranks, sequence), saved_formula(shape, batch, ranks, sequence));
          }
          // All of it is divided, but for copies of key/value heads.
          if (ranks <= kv_heads) {
            EXPECT_EQ(saved(ranks, true) * static_cast<std::uint64_t>(ranks), alone);
          }
          EXPECT_GT(saved(ranks, false) * static_cast<std::uint64_t>(ranks), alone);
        }
      }
    }
  }
}

TEST(ContextLayers, SaveAsManyBytesAsTheFormulaSays) {
  const ModelShape shape{ModelFamily::kLlama, 1, 256, 8, 4, 512, 64, 64, true};
  const BatchShape batch{1, 1024, DType::kBF16};
  const auto kernels = kernels::make_host_kernels({1});
  for (const bool ring : {false, true}) {
    for (const std::int64_t contexts : {2, 4}) {
      for (const bool sequence : {false, true}) {
        const std::int64_t ranks = sequence ? 2 : 1;
        if (!ring && shape.kv_heads % (ranks * contexts) != 0) continue;
        TensorShare share{0, ranks, sequence};
        share.contexts = contexts;
        share.ring = ring;
        const Model model(shape, share);
        EXPECT_EQ(model.units()[1].layer->needs(batch, *kernels).saved_bytes,
                  saved_formula(shape, batch, ranks, sequence, contexts, !ring));
      }
    }
  }
}

// Every rank of a group has the same places and the same norm blocks, so that one plan serves all.
TEST(TensorLayers, LieAlikeOnAllRanks) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Model first(shape_of(c), {0, c.ranks});
    for (std::int64_t rank = 1; rank < c.ranks; ++rank) {
      const Model other(shape_of(c), {rank, c.ranks});
      for (std::size_t unit = 0; unit < first.units().size(); ++unit) {
        const UnitLayout& a = first.layout(unit);
        const UnitLayout& b = other.layout(unit);
        EXPECT_EQ(a.elems(), b.elems());
        EXPECT_EQ(a.norm_blocks_before(), b.norm_blocks_before());
        for (std::size_t t = 0; t < a.tensors().size(); ++t) {
          EXPECT_EQ(a.tensors()[t].first_elem, b.tensors()[t].first_elem);
          EXPECT_EQ(a.tensors()[t].spec.name, b.tensors()[t].spec.name);
        }
      }
    }
  }
}

// One plan serves all ranks, and products of fewer tokens may need more memory.
TEST(TensorLayers, HaveAHeadsWorkspaceThatIsEnoughForEveryRank) {
  const auto kernels = kernels::make_host_kernels({1});
  for (const std::int64_t hidden : {64, 128}) {
    for (const std::int64_t vocab : {129, 257, 385, 513}) {
      for (const std::int64_t ranks : {2, 4}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const ModelShape shape{ModelFamily::kGpt2, 1, hidden, 4, 4, hidden, vocab, 16, true};
          const BatchShape batch{1, 16, dtype};
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            const TensorShare share{rank, ranks};
            const std::uint64_t own =
                kernels->head_workspace_bytes({batch.rows(), hidden, share.tokens(vocab), dtype});
            const Model model(shape, share);
            const PassNeeds needs = model.units().back().layer->needs(batch, *kernels);
            EXPECT_GE(needs.forward_workspace_bytes, own);
            EXPECT_GE(needs.backward_weight_workspace_bytes, own);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::model
