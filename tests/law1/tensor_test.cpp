// Ranks of a tensor group, as threads with a session each, against one rank.
//
// Sums over parts have another order than those of the whole, so in fp32 losses agree within 1e-5
// and norms within 1e-4. All ranks of a group have the same bits, and memory options never change
// them. Initial values and files do not depend on sums, and are equal to the bit.
#include <gtest/gtest.h>

#include "base/posix_file.hpp"
#include "tests/support/reshard.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::train {
namespace {

using namespace testing;

void expect_near_one_rank(const Overrides& settings, int ranks) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, " + ::testing::PrintToString(settings));
  const TrainingBench bench;
  const RanksRecord alone = train_group(config_of_group(bench, settings, 1));
  const RanksRecord group = train_group(config_of_group(bench, settings, ranks));
  expect_near(group.losses, alone.losses, 1e-5);
  expect_near(group.norms, alone.norms, 1e-4);
  EXPECT_NE(group.norms, alone.norms) << "sums have the order of one rank: no part was summed";
}

TEST(Tensor, RanksTrainAsOneRankDoes) {
  int next = 0;
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
      for (const char* vocab : {"model.vocab=256", "model.vocab=277"}) {
        if (samples_sweeps() && next++ % 5 != 0) continue;
        // In turn; every pair of settings has both.
        const bool many = (family[13] == 'g') == ((tied[21] == 't') == (vocab[13] == '5'));
        expect_near_one_rank({family, tied, vocab}, many ? 4 : 2);
      }
    }
  }
  // Grouped queries; then more ranks than key/value heads.
  const auto shares = [](const char* family, int kv_heads, const char* rows, int ranks) {
    expect_near_one_rank({std::string("model.family=") + family, "model.vocab=256",
                          "model.kv_heads=" + std::to_string(kv_heads), rows},
                         ranks);
  };
  shares("gpt2", 1, "parallel.sequence=false", 4);
  if (samples_sweeps()) return;
  shares("llama", 2, "parallel.sequence=false", 2);
  shares("llama", 2, "parallel.sequence=false", 4);
  shares("llama", 1, "parallel.sequence=false", 2);
  shares("gpt2", 2, "parallel.sequence=false", 4);
}

// Ranks that divide the rows have the sums of those that do not, but for the norms' gradients.
TEST(Tensor, RanksThatDivideTheRowsTrainAsOneRankDoes) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const int ranks : {2, 4}) {
      if (samples_sweeps() && ranks == 4) continue;
      const Overrides settings{family, "model.vocab=277"};
      const Overrides rows = settings + Overrides{"parallel.sequence=true"};
      const TrainingBench bench;
      const RanksRecord alone = train_group(config_of_group(bench, settings, 1));
      const RanksRecord whole = train_group(config_of_group(bench, settings, ranks));
      const RanksRecord cut = train_group(config_of_group(bench, rows, ranks));
      EXPECT_EQ(cut.losses.front(), whole.losses.front());
      expect_near(cut.losses, alone.losses, 1e-5);
      expect_near(cut.norms, alone.norms, 1e-4);
      EXPECT_NE(cut.norms, whole.norms) << "no norm's gradient was summed";
    }
  }
}

// Each mesh with two models; the sweep has all.
TEST(Tensor, GradientsInBf16AreAsNearAsThoseOfOneRank) {
  for (std::size_t model = 0; model < kBf16Models; ++model) {
    if (samples_sweeps() && model + 1 != kBf16Models) continue;
    expect_near_in_bf16(model, samples_sweeps() ? 3 : 2);
  }
}

// Everything that a checkpoint, an export or a hash sees is the whole tensor.
TEST(Tensor, InitialWeightsDoNotDependOnTheRanks) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    const TrainingBench bench;
    const Overrides settings{family, "model.vocab=277"};
    const RanksRecord alone = train_group(config_of_group(bench, settings, 1), 0);
    for (const int ranks : {2, 4}) {
      if (samples_sweeps() && ranks == 4) continue;
      EXPECT_EQ(train_group(config_of_group(bench, settings, ranks), 0), alone) << ranks;
    }
  }
}

// --- parts of sequences
// ----------------------------------------------------------------------------

TEST(Context, RanksTrainAsOneRankDoes) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
      for (const int ranks : {2, 4}) {
        const bool chosen =
            (ranks == 4) == (tied[21] == 't') && (ranks == 4) == (family[13] == 'g');
        if (samples_sweeps() && !chosen) continue;
        SCOPED_TRACE(std::string(family) + ", " + tied + ", " + std::to_string(ranks));
        const TrainingBench bench;
        const RanksRecord alone = train_group(config_of_contexts(bench, {family, tied}, 1));
        const RanksRecord group = train_group(config_of_contexts(bench, {family, tied}, ranks));
        expect_near(group.losses, alone.losses, 1e-5);
        expect_near(group.norms, alone.norms, 1e-4);
        EXPECT_NE(group.norms, alone.norms);
      }
    }
  }
}

// Recomputation, places and the rest of the mesh change no bit of a context group.
TEST(Context, MeshesHaveTheBitsOfTheirGroup) {
  for (std::size_t i = 0; i < sweep(8); ++i) expect_context_bits(i, "all-to-all");
}

// --- a ring of keys and values
// -----------------------------------------------------------------------

// Also more ranks than key/value heads.
TEST(Ring, RanksTrainAsOneRankDoes) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const int ranks : {2, 4}) {
      for (const char* kv_heads : {"model.kv_heads=1", "model.kv_heads=2"}) {
        if (samples_sweeps() && ranks == 2) continue;
        const Overrides settings = kRing + Overrides{family, kv_heads};
        SCOPED_TRACE(::testing::PrintToString(settings) + ", " + std::to_string(ranks));
        const TrainingBench bench;
        const RanksRecord alone = train_group(config_of_contexts(bench, settings, 1));
        const RanksRecord group = train_group(config_of_contexts(bench, settings, ranks));
        expect_near(group.losses, alone.losses, 1e-5);
        expect_near(group.norms, alone.norms, 1e-4);
        EXPECT_NE(group.norms, alone.norms);
      }
    }
  }
}

TEST(Ring, MeshesHaveTheBitsOfTheirGroup) {
  for (std::size_t i = 0; i < sweep(8); ++i) expect_context_bits(i, "ring");
}

// --- parts of sequences and of layers
// ----------------------------------------------------------------

Overrides both(int tensor, const char* attention) {
  return {"parallel.tensor=" + std::to_string(tensor),
          std::string("parallel.context_attention=") + attention};
}

TEST(TensorAndContext, RanksTrainAsOneRankDoes) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const char* attention : {"all-to-all", "ring"}) {
      if (samples_sweeps() && (family[13] == 'g') == (attention[0] == 'r')) continue;
      SCOPED_TRACE(std::string(family) + ", " + attention);
      const TrainingBench bench;
      const RanksRecord alone = train_group(config_of_contexts(bench, {family}, 1));
      const RanksRecord group =
          train_group(config_of_contexts(bench, both(2, attention) + Overrides{family}, 2));
      expect_near(group.losses, alone.losses, 1e-5);
      expect_near(group.norms, alone.norms, 1e-4);
      EXPECT_NE(group.norms, alone.norms);
    }
  }
}

// Data-parallel groups of four ranks each, with all ZeRO stages.
TEST(TensorAndContext, MeshesHaveTheBitsOfTheirGroup) {
  for (std::size_t i = 0; i < sweep(4); ++i) {
    const char* attention = i % 2 == 0 ? "ring" : "all-to-all";
    const Overrides settings =
        both(2, attention) + Overrides{i / 2 == 0 ? "model.family=llama" : "model.family=gpt2",
                                       "train.accumulate=4", "parallel.sequence=true",
                                       "train.order=microbatch", "train.precision=bf16"};
    const Overrides mesh{"parallel.data=2", "parallel.zero=" + std::to_string(i),
                         "recompute.policy=selective"};
    SCOPED_TRACE(::testing::PrintToString(settings + mesh));
    const TrainingBench bench, other;
    const RanksRecord alone = train_group(config_of_contexts(
        bench, settings + Overrides{"recompute.policy=none"} + places("device", "device", "device"),
        2));
    RanksRecord found = train_group(config_of_contexts(
        other, settings + mesh + places(i == 3 ? "pinned" : "device", "device", "pinned"), 2));
    found.redone_steps = alone.redone_steps;
    EXPECT_EQ(found, alone);
  }
}

// Ranks with other parts of the sequences have copies of all parts, which files hold once.
TEST(TensorAndContext, FilesAreThoseOfTheWhole) {
  const ScratchDirectory files;
  const Overrides context{"parallel.context=2", "train.micro_batch=1",
                          "parallel.context_attention=ring"};
  const Overrides model{"model.family=gpt2", "model.vocab=277"};
  const std::vector<TensorMesh> meshes{
      {2, 1, 1, 0, {}, context},
      {1, 1, 1, 0, {}, {}},
      {2, 2, 1, 3, {}, context + places("pinned", "pinned", "storage")}};
  for (std::size_t from = 0; from < sweep(meshes.size()); ++from) {
    const TensorMesh& to = meshes[(from + 1) % meshes.size()];
    write_state(meshes[from], model, 2, "", files / "made");
    write_state(to, model, 0, files / "made", files / "again");
    EXPECT_EQ(hash_file(files / "again"), hash_file(files / "made")) << from;
  }
}

// --- what changes no bit
// -----------------------------------------------------------------------------

Overrides memory_options(std::size_t i) {
  Overrides options;
  const auto pick = [&](std::size_t stride, std::initializer_list<const char*> values) {
    options.push_back(values.begin()[i / stride % values.size()]);
  };
  pick(1, {"train.order=unit", "train.order=microbatch"});
  pick(3, {"optimizer.placement=after_backward", "optimizer.placement=next_forward",
           "optimizer.placement=speculative"});
  pick(2, {"recompute.policy=none", "recompute.policy=unit", "recompute.policy=selective",
           "recompute.policy=every:2"});
  return options + places_in_turn(i);
}

TEST(Tensor, MemoryOptionsNeverChangeTheBits) {
  const TrainingBench bench;
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    const Overrides settings{
        family, "model.vocab=277", "model.layers=3",
        family[13] == 'l' ? "parallel.sequence=true" : "parallel.sequence=false"};
    const RanksRecord plain = train_group(config_of_group(
        bench, settings + Overrides{"recompute.policy=none"} + places("device", "device", "device"),
        2));
    const std::size_t first = family[13] == 'l' ? 12 : 0;
    for (std::size_t i = first; i < first + sweep(12); ++i) {
      SCOPED_TRACE(::testing::PrintToString(memory_options(i)));
      const TrainingBench own;
      RanksRecord other = train_group(config_of_group(own, settings + memory_options(i), 2));
      other.redone_steps = plain.redone_steps;  // of a speculative update
      EXPECT_EQ(other, plain);
    }
  }
}

// Values that leave the device come back to the rank and the rows that they are of. With
// parallel.sequence and recomputation these are checkpoints in parts.
TEST(Tensor, SpilledPartsComeBackToTheirRanks) {
  const Overrides rows{"parallel.tensor=2", "parallel.sequence=true"};
  const Overrides heads{"parallel.context=2", "train.micro_batch=1"};
  const std::vector<std::pair<Overrides, Overrides>> cases{
      {rows, {"recompute.policy=unit", "memory.place.activation=pinned"}},
      {heads + kRing, {"recompute.policy=none", "memory.place.activation=storage"}},
      {rows + heads, {"recompute.policy=selective", "memory.place.activation=pinned"}},
      {{"parallel.tensor=2"}, {"recompute.policy=none", "memory.place.activation=pinned"}},
      {heads, {"recompute.policy=unit", "memory.place.activation=storage"}},
      {rows, {"recompute.policy=every:2", "memory.place.activation=storage"}}};
  for (const auto& [mesh, spill] : sampled(cases)) {
    SCOPED_TRACE(::testing::PrintToString(mesh + spill));
    const TrainingBench bench, other;
    const Overrides kept =
        tensor_model() + mesh + Overrides{"model.layers=4", "train.order=unit", "model.vocab=277"};
    const config::Config config = bench.config("run", kept + spill);
    const planner::Plan plan = plan_of_world(config);
    std::size_t spilled = 0;
    for (const schedule::Instruction& move : plan.training().instructions) {
      spilled += move.op == schedule::Op::kSpillActivation ? 1 : 0;
    }
    EXPECT_GT(spilled, 2u);
    EXPECT_EQ(train_group(config), train_group(other.config("run", kept)));
  }
}

// Every mesh writes and reads; the sweep has all pairs.
TEST(Tensor, AnyMeshLoadsTheStateOfAnyOther) {
  for (std::size_t from = 0; from < sweep(resharded_meshes().size()); ++from) {
    expect_equal_states(from, samples_sweeps() ? 5 : 3);
  }
}

TEST(Tensor, AnyMeshLoadsTheCommitOfAnyOther) {
  for (const std::size_t from : sampled(committing_meshes())) {
    expect_equal_commits(from, samples_sweeps() ? 5 : 3);
  }
}

// Some of the meshes of the sweep (tensor_sweep.cpp).
TEST(Tensor, MeshesHaveTheBitsOfTheirGroup) {
  for (std::size_t i = 0; i < sweep(12); ++i) {
    expect_group_bits(i);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
