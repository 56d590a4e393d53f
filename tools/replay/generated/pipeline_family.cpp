// Interleaved 1F1B (Narayanan et al., "Efficient large-scale language model training on GPU
// clusters", SC 2021, section 2.2) as one rank sees it.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kPipelineRanges{{16, 32}, {24, 32}, {2048, 8192}, {1, 2}, {4, 16}};
constexpr std::uint64_t kTransferDelay = 10;  // operations until a send or receive has ended

// The part of one rank: its layers are units 1 and up, in the order of chunks.
class PipelineRank {
 public:
  PipelineRank(TraceRecorder& recorder, const Scenario& scenario, std::uint64_t rank,
               std::uint64_t layers_per_chunk, UnitStates& states)
      : recorder_(recorder),
        scenario_(scenario),
        rank_(rank),
        layers_(layers_per_chunk),
        pass_(recorder, scenario.shape, states),
        saved_(scenario.chunks) {
    pass_.set_batch(scenario.batch);
  }

  void run_iteration() {
    const std::uint64_t p = scenario_.stages;
    const std::uint64_t v = scenario_.chunks;
    const std::uint64_t total = scenario_.micro_batches * v;
    // With one chunk this is plain 1F1B, which needs half the distance.
    const std::uint64_t distance = p - rank_ - 1;
    const std::uint64_t warmup = std::min(total, v == 1 ? distance : 2 * distance + (v - 1) * p);
    for (std::uint64_t k = 0; k < warmup; ++k) forward(chunk_of(k));
    for (std::uint64_t k = warmup; k < total; ++k) {
      forward(chunk_of(k));
      backward(v - 1 - chunk_of(k - warmup));
    }
    for (std::uint64_t k = total - warmup; k < total; ++k) backward(v - 1 - chunk_of(k));
    pass_.end_pass();
  }

 private:
  struct InFlight {
    PassInputs inputs;
    std::vector<SavedBlock> blocks;
    SavedHead head;
    BufferId output = kNoBuffer;
  };

  std::uint64_t chunk_of(std::uint64_t k) const { return k / scenario_.stages % scenario_.chunks; }
  bool is_first(std::uint64_t chunk) const { return rank_ == 0 && chunk == 0; }
  bool is_last(std::uint64_t chunk) const {
    return rank_ + 1 == scenario_.stages && chunk + 1 == scenario_.chunks;
  }
  std::size_t head_unit() const { return layers_ * scenario_.chunks + 1; }

  BufferId transfer(const char* name) {
    const TransformerShape& shape = scenario_.shape;
    const BufferId id =
        recorder_.alloc(scenario_.batch.tokens() * shape.hidden * shape.element_bytes,
                        Category::kCommunication, name, kCommunicationStream);
    recorder_.record_stream(id, kTransferDelay);
    return id;
  }

  void forward(std::uint64_t chunk) {
    InFlight flight;
    BufferId stream = kNoBuffer;
    if (is_first(chunk) || is_last(chunk)) flight.inputs = pass_.begin_inputs();
    if (is_first(chunk)) {
      stream = pass_.forward_embedding(flight.inputs);
    } else {
      stream = transfer("receive.forward");
    }
    for (std::uint64_t i = 0; i < layers_; ++i) {
      stream = pass_.forward_block(1 + chunk * layers_ + i, stream, flight.blocks.emplace_back());
    }
    if (is_last(chunk)) {
      pass_.forward_head(head_unit(), stream, flight.head);
    } else {  // sent, and given back once that has ended: backward does not need its values
      recorder_.record_stream(stream, kTransferDelay);
      recorder_.free(stream);
    }
    saved_[chunk].push_back(std::move(flight));
  }

  void backward(std::uint64_t chunk) {
    InFlight flight = std::move(saved_[chunk].front());
    saved_[chunk].erase(saved_[chunk].begin());
    BufferId gradient = is_last(chunk) ? pass_.backward_head(head_unit(), flight.head)
                                       : transfer("receive.backward");
    for (std::uint64_t i = layers_; i-- > 0;) {
      gradient = pass_.backward_block(1 + chunk * layers_ + i, gradient, flight.blocks[i]);
    }
    if (is_first(chunk)) {
      pass_.backward_embedding(gradient);
    } else {
      recorder_.record_stream(gradient, kTransferDelay);
      recorder_.free(gradient);
    }
    pass_.end_inputs(flight.inputs);
  }

  TraceRecorder& recorder_;
  const Scenario& scenario_;
  std::uint64_t rank_;
  std::uint64_t layers_;
  TransformerPass pass_;
  std::vector<std::vector<InFlight>> saved_;  // by chunk, oldest first
};

}  // namespace

void generate_pipeline(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kPipelineRanges);
  Draws draws(options.seed, "generated/pipeline");
  const std::uint64_t p = scenario.stages;
  const std::uint64_t v = scenario.chunks;
  const std::uint64_t rank = draws.below(p);
  const std::uint64_t layers_per_chunk =
      std::max<std::uint64_t>(1, scenario.shape.layers / (p * v));
  if (options.micro_batches == 0) {  // traces of some 10,000 operations an iteration
    const std::uint64_t most = std::max<std::uint64_t>(1, 64 / (layers_per_chunk * v * p));
    scenario.micro_batches = p * draws.between((most + 1) / 2, most);
  }
  if (scenario.micro_batches % p != 0) {
    throw InputError("trace generator: micro_batches = " + std::to_string(scenario.micro_batches) +
                     " must be a multiple of stages = " + std::to_string(p));
  }
  TransformerShape own = scenario.shape;
  own.layers = layers_per_chunk * v;
  const auto units = model_units(own);
  StateOptions state_options;
  state_options.weight_bytes = state_options.gradient_bytes = own.element_bytes;
  state_options.shards = scenario.ranks;
  const std::uint64_t in_flight = std::min(
      scenario.micro_batches * v, v == 1 ? p - rank : 2 * (p - rank - 1) + (v - 1) * p + 1);
  const std::uint64_t tokens = scenario.batch.sequence;
  fit_micro_batch(scenario, {sharded_state_bytes(scenario, element_count(units)),
                             in_flight * layers_per_chunk * saved_block_bytes(own, tokens) +
                                 loss_peak_bytes(own, tokens)});
  ModelStates states(recorder, units, state_options);
  PipelineRank stage(recorder, scenario, rank, layers_per_chunk, states);
  states.allocate_weights();
  run_iterations(recorder, scenario, states, [&] { stage.run_iteration(); });
}

}  // namespace sluice::replay::generated
