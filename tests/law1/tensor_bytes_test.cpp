// The bytes that ranks of tensor and context groups send and save, compared with the formulas that
// docs/design/tensor.md derives term by term.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/saved_formula.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// All ranks together send these in their tensor and context groups, in a step.
std::uint64_t bytes_in_groups(const config::Config& config) {
  const planner::Plan plan = plan_of_world(config);
  std::uint64_t sent = 0;
  for (const planner::RankFigures& rank : plan.ranks) sent += rank.sent.inner;
  return sent;
}

model::Model first_model(const config::Config& config) {
  return model::Model(config::model_shape(config), config::tensor_share(config, 0));
}

// A rank's elements, and once more the embedding's of 64 columns, whose second use has a gradient
// of its own. tokens: most of a rank.
std::uint64_t gradient_elems(const config::Config& config, std::uint64_t tokens) {
  const model::Model model = first_model(config);
  std::uint64_t elems = tokens * 64;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    elems += model.layout(unit).elems();
  }
  return elems;
}

// Blocks of tensors in parts, each with a partial of the norm.
std::uint64_t norm_blocks(const config::Config& config) {
  const model::Model model = first_model(config);
  std::uint64_t blocks = 0;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    for (const model::PlacedTensor& placed : model.layout(unit).tensors()) {
      if (placed.spec.is_part()) blocks += ceil_div(placed.spec.place_elems(), kLawBlockElems);
    }
  }
  return blocks;
}

// docs/design/tensor.md derives the terms. Phi = rows * hidden.
TEST(Tensor, SendAsManyElementsAsTheFormulaSays) {
  const std::uint64_t layers = 2, microbatches = 2, rows = 2 * 16, phi = rows * 64;
  for (std::size_t i = 0; i < sweep(24); ++i) {
    const std::uint64_t ranks = i % 2 == 0 ? 2 : 4, kv_heads = 4 >> i / 8;
    const bool recomputes = i / 2 % 2 == 1, sequence = i / 4 % 2 == 1;
    const TrainingBench bench;
    const config::Config config = config_of_group(
        bench,
        {"model.family=gpt2", "model.vocab=277", "model.kv_heads=" + std::to_string(kv_heads),
         recomputes ? "recompute.policy=unit" : "recompute.policy=none",
         sequence ? "parallel.sequence=true" : "parallel.sequence=false"},
        static_cast<int>(ranks));
    // Embedding; two of each layer in each pass, one more to recompute a layer; head.
    std::uint64_t sums = phi + layers * (recomputes ? 5 : 4) * phi + phi + 3 * rows;
    std::uint64_t halves = 0;  // scatters and gathers
    if (sequence) {
      const std::uint64_t norms = (2 * layers + 1) * 2 * 64;
      sums = 3 * rows + norms;
      halves = phi * (2 + layers * (recomputes ? 13 : 10) + 3);
    }
    // The sums of k's and v's gradients among the ranks that share a head of 16 columns.
    const std::uint64_t sharers = std::max<std::uint64_t>(ranks / kv_heads, 1);
    const std::uint64_t copies = layers * 2 * 16 * (64 + 1) * kv_heads * 2 * (sharers - 1);
    const std::uint64_t blocks = norm_blocks(config);
    // All ranks together: a half sends each element to all others of its rank, or from them.
    EXPECT_EQ(bytes_in_groups(config),
              (ranks - 1) * (microbatches * (2 * sums + halves) * sizeof(float) +
                             2 * blocks * sizeof(double)) +
                  microbatches * copies * sizeof(float))
        << i;
  }
}

// docs/design/tensor.md derives the terms. All ranks send (c - 1) / c of what each has.
TEST(Context, SendAsManyElementsAsTheFormulaSays) {
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t ranks = i % 2 == 0 ? 2 : 4;
    const bool recomputes = i / 2 == 1;
    const TrainingBench bench;
    const config::Config config = config_of_contexts(
        bench,
        {"model.family=gpt2", recomputes ? "recompute.policy=unit" : "recompute.policy=none"},
        static_cast<int>(ranks));
    const std::uint64_t gradients = gradient_elems(config, 277);
    const std::uint64_t layers = 2, microbatches = 2, rows = 16, phi = rows * 64;
    // q, k, v and output, both ways, and once more to recompute a layer.
    const std::uint64_t exchanged = layers * (recomputes ? 3 : 2) * 4 * phi;
    EXPECT_EQ(bytes_in_groups(config),
              microbatches * (exchanged * sizeof(float) * (ranks - 1) / ranks +
                              2 * (ranks - 1) * (gradients * sizeof(float) + 8)))
        << i;
  }
}

// docs/design/tensor.md derives the terms. All ranks together send (c - 1) times what each has.
TEST(Ring, SendAsManyElementsAsTheFormulaSays) {
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t ranks = i % 2 == 0 ? 2 : 4;
    const bool recomputes = i / 2 == 1;
    const TrainingBench bench;
    const config::Config config = config_of_contexts(
        bench,
        Overrides{"parallel.context_attention=ring", "model.family=gpt2", "model.kv_heads=2",
                  "train.precision=bf16",
                  recomputes ? "recompute.policy=unit" : "recompute.policy=none"},
        static_cast<int>(ranks));
    const std::uint64_t gradients = gradient_elems(config, 277);
    const std::uint64_t layers = 2, microbatches = 2, keys = 16 * 2 * 32;  // of 2 heads of 16
    // Keys and values in bf16 forward and backward, and once more to recompute a layer; their
    // gradients in fp32.
    const std::uint64_t hops = layers * keys * ((recomputes ? 3 : 2) * 2 + sizeof(float));
    EXPECT_EQ(bytes_in_groups(config),
              (ranks - 1) * microbatches * (hops + 2 * (gradients * 2 + 8)))
        << i;
  }
}

// The terms of tensor groups are those of all rows together, and the terms of context groups those
// of all heads together. Each kind of ranks sums by itself.
TEST(TensorAndContext, SendAsManyElementsAsTheFormulaSays) {
  const std::uint64_t layers = 2, microbatches = 2, rows = 16, phi = rows * 64;
  for (std::size_t i = 0; i < sweep(16); ++i) {
    const std::uint64_t tensor = 2, contexts = i % 2 == 0 ? 2 : 4;
    const bool recomputes = i / 2 % 2 == 1, sequence = i / 4 % 2 == 1;
    // Heads are exchanged only where there are enough of them.
    const bool ring = i / 8 == 1 || contexts == 4;
    const TrainingBench bench;
    const config::Config config = config_of_contexts(
        bench,
        {"model.family=gpt2", "parallel.tensor=2",
         ring ? "parallel.context_attention=ring" : "parallel.context_attention=all-to-all",
         recomputes ? "recompute.policy=unit" : "recompute.policy=none",
         sequence ? "parallel.sequence=true" : "parallel.sequence=false"},
        static_cast<int>(contexts));
    const std::uint64_t gradients = gradient_elems(config, 139);
    const std::uint64_t blocks = norm_blocks(config);
    // Embedding, layers, head, as in a tensor group alone. A norm's gradient is of each group's
    // rows.
    std::uint64_t sums = phi + layers * (recomputes ? 5 : 4) * phi + phi + 3 * rows;
    std::uint64_t halves = 0;
    if (sequence) {
      sums = 3 * rows + contexts * (2 * layers + 1) * 2 * 64;
      halves = phi * (2 + layers * (recomputes ? 13 : 10) + 3);
    }
    const std::uint64_t in_tensor_groups =
        (tensor - 1) * (microbatches * (2 * sums + halves) * sizeof(float) +
                        contexts * 2 * blocks * sizeof(double));
    const std::uint64_t passes = recomputes ? 3 : 2;
    // Around a ring: keys and values of each pass, and their gradients.
    const std::uint64_t attention = ring ? layers * 2 * phi * (passes + 1) * (contexts - 1)
                                         : layers * 4 * phi * passes * (contexts - 1) / contexts;
    const std::uint64_t in_context_groups =
        microbatches *
        (attention * sizeof(float) + tensor * 2 * (contexts - 1) * (gradients * sizeof(float) + 8));
    EXPECT_EQ(bytes_in_groups(config), in_tensor_groups + in_context_groups) << i;
  }
}

// A run that spills activations downloads what the layers save. With parallel.sequence that is 1/t
// of what one rank saves.
TEST(Tensor, SavesAsManyBytesAsTheFormulaSays) {
  constexpr std::int64_t kSteps = 2;
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const auto& [ranks, sequence] : {std::pair(1, false), {2, false}, {2, true}, {4, true}}) {
      if (samples_sweeps() && ranks == 4) continue;
      SCOPED_TRACE(std::string(family) + ", " + std::to_string(ranks));
      const TrainingBench bench;
      const config::Config config = config_of_group(
          bench,
          Overrides{family, "model.layers=4", "train.seq=64", "recompute.policy=none",
                    "train.order=unit", "memory.place.activation=pinned",
                    sequence ? "parallel.sequence=true" : "parallel.sequence=false"} +
              places("device", "device", "device"),
          ranks);
      const planner::Plan plan = plan_of_world(config);
      const model::ModelShape shape = config::model_shape(config);
      const std::uint64_t layer =
          saved_formula(shape, config::batch_shape(config), ranks, sequence);
      const schedule::Schedule& step = plan.training();
      std::map<std::int32_t, std::uint64_t> saved;  // by unit
      std::uint64_t downloaded = 0;
      for (const schedule::Instruction& spill : step.instructions) {
        if (spill.lane == schedule::Lane::kD2H) downloaded += spill.bytes;
        if (spill.op != schedule::Op::kSpillActivation) continue;
        const schedule::Buffer& buffer = step.buffers[spill.reads.front().buffer];
        if (buffer.role == schedule::BufferRole::kSaved) saved[buffer.unit] += spill.bytes;
      }
      int layers = 0;
      for (std::int32_t unit = 1; unit <= 4; ++unit) {
        // Both micro-batches, or neither where the values are needed again soon.
        if (saved[unit] == 0) continue;
        EXPECT_EQ(saved[unit], 2 * layer) << unit;
        ++layers;
      }
      EXPECT_GE(layers, 2);
      const RanksRun run = train_on_ranks(config, plan.options, kSteps);
      for (const schedule::LinkBytes& moved : run.moved) {
        EXPECT_EQ(moved.download, kSteps * downloaded);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::train
