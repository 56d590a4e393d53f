// Hundreds of pipelines of up to eight ranks, drawn at random: each has the bits of one rank.
#include "base/rng.hpp"
#include "tests/support/pipeline_training.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

PipelineCase drawn_case(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/pipelines"));
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) {
    return static_cast<std::size_t>(random.below(draw++, bound));
  };
  PipelineCase at;
  const auto pick = [&](std::initializer_list<const char*> values) {
    at.settings.push_back(values.begin()[below(values.size())]);
  };
  const auto kind = static_cast<schedule::OrderKind>(below(schedule::kOrderKindCount));
  at.order = schedule::order_name(kind);
  at.pipeline = static_cast<int>(2 + below(3));
  at.data = static_cast<int>(1 + below(2));
  at.zero = at.data == 1 ? 0 : static_cast<int>(below(4));
  if (schedule::takes_several_stages(kind)) at.virtual_stages = static_cast<int>(1 + below(2));
  if (kind == schedule::OrderKind::kZbV) at.virtual_stages = 2;
  at.microbatches =
      at.pipeline + static_cast<int>(below(2 * static_cast<std::size_t>(at.pipeline) + 2));
  // Groups of micro-batches have sums of their own on any mesh.
  if (at.microbatches % 2 == 0 && below(4) == 0) at.fold_groups = 2;
  at.cut_seed = seed;
  pick({"optimizer.placement=after_backward", "optimizer.placement=next_forward",
        "optimizer.placement=speculative"});
  pick({"recompute.policy=none", "recompute.policy=unit", "recompute.policy=selective",
        "recompute.policy=attention", "recompute.policy=every:2"});
  pick({"train.precision=bf16", "train.precision=fp32", "train.precision=fp16"});
  pick({"optimizer.name=adamw", "optimizer.name=lion", "optimizer.name=muon",
        "optimizer.name=adafactor"});
  pick({"model.family=gpt2", "model.family=llama"});
  pick({"train.clip=1.0", "train.clip=0"});
  for (const char* const state : {"weight", "gradient", "optimizer"}) {
    constexpr std::array kTiers{"pinned", "storage"};
    at.settings.push_back(std::string("memory.place.") + state + "=" + kTiers[below(2)]);
  }
  pick({"memory.place.activation=device", "memory.place.activation=pinned",
        "memory.place.activation=storage"});
  return at;
}

TEST(PipelinesSweep, DrawnPipelinesGiveOneRanksBits) {
  for (std::uint64_t seed = 0; seed < sweep(400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_one_ranks_bits(drawn_case(seed));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
