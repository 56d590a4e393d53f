// Reinforcement learning from feedback: generation with a growing KV cache, scoring without
// gradients, then training of adapters; each phase has its own shapes.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kRlhfRanges{{12, 16}, {16, 28}, {1024, 2048}, {2, 4}, {1, 8}};
// The cache grows in this many steps, so that traces stay short.
constexpr std::uint64_t kDecodeSteps = 8;

class Generation {
 public:
  Generation(TraceRecorder& recorder, const TransformerShape& shape, const Batch& batch,
             TransformerPass& pass)
      : recorder_(recorder),
        shape_(shape),
        pass_(pass),
        batch_(batch),
        caches_(2 * shape.layers, kNoBuffer) {}

  // The prompt is a quarter of the sequence; the rest is sampled.
  void run() {
    const std::uint64_t prompt = batch_.sequence / 4;
    const std::uint64_t stride =
        std::max<std::uint64_t>(1, (batch_.sequence - prompt) / kDecodeSteps);
    pass_.set_saving(false);
    forward(prompt, prompt);
    for (std::uint64_t length = prompt; length + stride <= batch_.sequence; length += stride) {
      forward(1, length + stride);
    }
    for (BufferId& cache : caches_) recorder_.free(cache);
  }

 private:
  // The cache of a layer is concatenated with the new tokens. Old and new cache live together for a
  // moment.
  void grow_caches(std::size_t layer, std::uint64_t length) {
    const std::uint64_t bytes =
        batch_.sequences * length * shape_.kv_hidden() * shape_.element_bytes;
    for (std::size_t i = 2 * layer; i < 2 * layer + 2; ++i) {
      BufferId grown = recorder_.alloc(bytes, Category::kActivation, "generate.kv_cache");
      recorder_.free(caches_[i]);
      caches_[i] = std::exchange(grown, kNoBuffer);
    }
  }

  void forward(std::uint64_t tokens, std::uint64_t length) {
    pass_.set_batch({batch_.sequences, tokens});
    PassInputs inputs = pass_.begin_inputs();
    BufferId stream = pass_.forward_embedding(inputs);
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      SavedBlock unused;
      stream = pass_.forward_block(layer + 1, stream, unused);
      grow_caches(layer, length);
    }
    recorder_.free(stream);
    // The logits of the last token of each sequence.
    const std::uint64_t logits = batch_.sequences * shape_.vocab;
    BufferId narrow =
        recorder_.alloc(logits * shape_.element_bytes, Category::kActivation, "sample.logits");
    BufferId wide = recorder_.alloc(logits * 4, Category::kActivation, "sample.logits");
    recorder_.free(narrow);
    BufferId sorted = recorder_.alloc(logits * 4, Category::kActivation, "sample.sorted");
    BufferId order = recorder_.alloc(logits * 8, Category::kActivation, "sample.order");
    recorder_.temporary(logits * 4, Category::kActivation, "sample.cumulative");
    recorder_.free(sorted);
    recorder_.free(order);
    recorder_.free(wide);
    recorder_.temporary(batch_.sequences * 8, Category::kExternal, "sample.tokens");
    pass_.end_inputs(inputs);
  }

  TraceRecorder& recorder_;
  const TransformerShape& shape_;
  TransformerPass& pass_;
  Batch batch_;
  std::vector<BufferId> caches_;  // k and v of each layer
};

// A forward pass for log-probabilities or rewards; returns one number for each token.
BufferId score(TraceRecorder& recorder, TransformerPass& pass, const Batch& batch,
               std::uint64_t layers) {
  pass.set_batch(batch);
  pass.set_saving(false);
  PassInputs inputs = pass.begin_inputs();
  BufferId stream = pass.forward_embedding(inputs);
  for (std::size_t unit = 1; unit <= layers; ++unit) {
    SavedBlock unused;
    stream = pass.forward_block(unit, stream, unused);
  }
  SavedHead head;
  pass.forward_head(layers + 1, stream, head);
  const BufferId scores = recorder.alloc(batch.tokens() * 4, Category::kExternal, "rollout.scores");
  recorder.free(head.loss);
  pass.end_inputs(inputs);
  return scores;
}

}  // namespace

void generate_rlhf(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kRlhfRanges);
  TransformerShape& shape = scenario.shape;
  shape.is_gated = true;
  shape.is_scaled = false;
  shape.is_fused = true;            // as in inference engines
  TransformerShape reward = shape;  // half as deep
  reward.layers = std::max<std::uint64_t>(1, shape.layers / 2);
  const std::uint64_t e = shape.element_bytes;
  const std::uint64_t room_bytes = fit_micro_batch(
      scenario, {(element_count(model_units(shape)) + element_count(model_units(reward))) * e,
                 bytes_per_sequence(scenario, shape.layers)});
  constexpr std::uint64_t kAdapterRank = 16;
  // Sampling runs many more sequences at once than training: the cache takes half of the room.
  const std::uint64_t cache_bytes =
      2 * shape.layers * scenario.batch.sequence * shape.kv_hidden() * e;
  Batch sampled = scenario.batch;
  sampled.sequences = std::clamp<std::uint64_t>(room_bytes / 2 / cache_bytes, 1, 512);
  StateOptions frozen;
  frozen.weight_bytes = e;
  ModelStates base(recorder, model_units(shape), frozen);
  ModelStates reward_base(recorder, model_units(reward), frozen);
  AdapterStates adapters(recorder, shape, kAdapterRank);
  FrozenWeights none;
  TransformerPass actor(recorder, shape, adapters, kAdapterRank);
  TransformerPass reference(recorder, shape, none);
  TransformerPass judge(recorder, reward, none);
  base.allocate_weights();
  reward_base.allocate_weights();
  adapters.allocate_weights();
  run_iterations(recorder, scenario, adapters, [&] {
    Generation(recorder, shape, sampled, actor).run();
    std::vector<BufferId> scores;
    scores.push_back(score(recorder, actor, scenario.batch, shape.layers));
    scores.push_back(score(recorder, reference, scenario.batch, shape.layers));
    scores.push_back(score(recorder, judge, scenario.batch, reward.layers));
    recorder.flush();  // such programs empty the cache between phases
    actor.set_batch(scenario.batch);
    for (std::uint64_t m = 0; m < scenario.micro_batches; ++m) {
      run_micro_batch(recorder, actor, adapters, shape.layers, 0);
    }
    for (BufferId& one : scores) recorder.free(one);
  });
}

}  // namespace sluice::replay::generated
