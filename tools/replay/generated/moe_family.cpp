// Mixture of experts: each token goes to two experts, so sizes depend on the router's choice.
#include <cmath>
#include <vector>

#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kMoeRanges{{12, 20}, {12, 24}, {1024, 4096}, {1, 2}, {4, 8}};
constexpr std::uint64_t kLocalExperts = 4;  // on this rank
constexpr std::uint64_t kExpertsPerToken = 2;

struct SavedExpert {
  std::uint64_t rows = 0;
  BufferId input = kNoBuffer, gate = kNoBuffer, up = kNoBuffer, activated = kNoBuffer,
           product = kNoBuffer;
};

struct SavedLayer {
  SavedBlock block;  // its MLP's norm is used, not the rest
  BufferId probabilities = kNoBuffer, weights = kNoBuffer, indices = kNoBuffer, order = kNoBuffer;
  BufferId combined = kNoBuffer;  // experts' outputs, back in order of tokens
  std::uint64_t received = 0;
  std::vector<SavedExpert> experts;
};

class ExpertLayers {
 public:
  ExpertLayers(TraceRecorder& recorder, const Scenario& scenario, UnitStates& states)
      : recorder_(recorder),
        scenario_(scenario),
        shape_(scenario.shape),
        pass_(recorder, scenario.shape, states),
        draws_(scenario.options.seed, "generated/router"),
        // A layer prefers some experts, from its initialisation on.
        bias_(shape_.layers * experts()) {
    for (double& one : bias_) one = 0.4 * draws_.normal();
    pass_.set_batch(scenario.batch);
    first_expert_ = static_cast<std::uint32_t>(attention_layout(shape_).parameters.size()) + 1;
  }

  std::uint64_t experts() const { return scenario_.ranks * kLocalExperts; }
  TransformerPass& pass() { return pass_; }

  BufferId forward(std::size_t unit, BufferId input, SavedLayer& saved) {
    const std::uint64_t tokens = pass_.batch().tokens();
    const std::uint64_t row_bytes = shape_.hidden * shape_.element_bytes;
    saved.block.middle = pass_.forward_attention(unit, input, saved.block);
    pass_.forward_norm(saved.block.mlp.norm, tokens, "norm2");
    route(unit, saved);
    BufferId sorted = activation(tokens * kExpertsPerToken * row_bytes, "moe.permuted");
    BufferId dispatched = transfer(saved.received * row_bytes, "moe.dispatch");
    recorder_.free(sorted);
    BufferId outputs = activation(saved.received * row_bytes, "moe.outputs");
    for (SavedExpert& one : saved.experts) forward_expert(one);
    recorder_.free(dispatched);
    saved.combined = transfer(tokens * kExpertsPerToken * row_bytes, "moe.combine");
    recorder_.free(outputs);
    return pass_.add_residual(activation(tokens * row_bytes, "moe.unpermuted"));
  }

  BufferId backward(std::size_t unit, BufferId gradient, SavedLayer& saved) {
    const std::uint64_t tokens = pass_.batch().tokens();
    const std::uint64_t row_bytes = shape_.hidden * shape_.element_bytes;
    BufferId permuted = activation(tokens * kExpertsPerToken * row_bytes, "moe.unpermuted");
    BufferId weights = activation(tokens * kExpertsPerToken * 4, "moe.weights");
    recorder_.free(saved.combined);
    BufferId dispatched = transfer(saved.received * row_bytes, "moe.combine");
    recorder_.free(permuted);
    BufferId inputs = activation(saved.received * row_bytes, "moe.inputs");
    for (std::size_t i = saved.experts.size(); i-- > 0;) {
      backward_expert(unit, i, saved.experts[i]);
    }
    recorder_.free(dispatched);
    BufferId returned = transfer(tokens * kExpertsPerToken * row_bytes, "moe.dispatch");
    recorder_.free(inputs);
    BufferId normed = activation(tokens * row_bytes, "moe.permuted");
    recorder_.free(returned);
    BufferId logits = activation(tokens * experts() * 4, "moe.router");
    recorder_.free(weights);
    for (BufferId* one : {&saved.probabilities, &saved.weights, &saved.indices, &saved.order}) {
      recorder_.free(*one);
    }
    pass_.accumulate(normed, pass_.linear_backward(unit, first_expert_ - 1, tokens, shape_.hidden,
                                                   experts(), logits, "moe.router"));
    recorder_.free(saved.block.mlp.norm.output);
    BufferId branch = pass_.backward_norm(unit, attention_layout(shape_).norm2,
                                          saved.block.mlp.norm, normed, tokens, "norm2");
    const BufferId sum = activation(tokens * row_bytes, "residual");
    recorder_.free(branch);
    recorder_.free(gradient);
    recorder_.free(saved.block.middle);
    return pass_.backward_attention(unit, sum, saved.block);
  }

 private:
  BufferId activation(std::uint64_t bytes, const char* name) {
    return recorder_.alloc(bytes, Category::kActivation, name);
  }
  BufferId transfer(std::uint64_t bytes, const char* name) {
    const BufferId id =
        recorder_.alloc(bytes, Category::kCommunication, name, kCommunicationStream);
    recorder_.record_stream(id, 8);
    return id;
  }

  // The experts' shares of the tokens of all ranks: a softmax over preferences that drift at
  // random.
  void route(std::size_t unit, SavedLayer& saved) {
    const std::uint64_t tokens = pass_.batch().tokens();
    BufferId logits = activation(tokens * experts() * 4, "moe.router");
    saved.probabilities = activation(tokens * experts() * 4, "moe.probabilities");
    recorder_.free(logits);
    saved.weights = activation(tokens * kExpertsPerToken * 4, "moe.weights");
    saved.indices = activation(tokens * kExpertsPerToken * 8, "moe.indices");
    saved.order = activation(tokens * kExpertsPerToken * 8, "moe.order");
    recorder_.temporary(tokens * kExpertsPerToken * 16 + 4096, Category::kWorkspace, "moe.sort");
    recorder_.temporary(experts() * 8, Category::kWorkspace, "moe.counts");
    recorder_.temporary(scenario_.ranks * experts() * 8, Category::kCommunication, "moe.counts");
    std::vector<double> shares;
    double sum = 0;
    for (std::uint64_t e = 0; e < experts(); ++e) {
      double& bias = bias_[(unit - 1) * experts() + e];
      bias = 0.98 * bias + 0.08 * draws_.normal();
      shares.push_back(std::exp(bias));
      sum += shares.back();
    }
    const double pairs = static_cast<double>(tokens * kExpertsPerToken * scenario_.ranks);
    saved.experts.resize(kLocalExperts);
    for (std::uint64_t e = 0; e < kLocalExperts; ++e) {
      saved.experts[e].rows = static_cast<std::uint64_t>(pairs * shares[e] / sum);
      saved.received += saved.experts[e].rows;
    }
  }

  void forward_expert(SavedExpert& saved) {
    const std::uint64_t inner = saved.rows * shape_.ffn * shape_.element_bytes;
    const std::uint64_t outer = saved.rows * shape_.hidden * shape_.element_bytes;
    saved.input = activation(outer, "expert.input");
    saved.gate = activation(inner, "expert.gate");
    saved.up = activation(inner, "expert.up");
    saved.activated = activation(inner, "expert.activation");
    saved.product = activation(inner, "expert.product");
    recorder_.temporary(outer, Category::kActivation, "expert.down");
  }

  void backward_expert(std::size_t unit, std::size_t index, SavedExpert& saved) {
    const auto first = static_cast<std::uint32_t>(first_expert_ + 3 * index);
    const std::uint64_t inner = saved.rows * shape_.ffn * shape_.element_bytes;
    BufferId output = activation(saved.rows * shape_.hidden * shape_.element_bytes, "expert.down");
    BufferId product = pass_.linear_backward(unit, first + 2, saved.rows, shape_.ffn, shape_.hidden,
                                             output, "expert.down");
    recorder_.free(saved.product);
    BufferId up = activation(inner, "expert.product");
    BufferId gate = activation(inner, "expert.activation");
    recorder_.free(product);
    for (BufferId* one : {&saved.activated, &saved.up, &saved.gate}) recorder_.free(*one);
    BufferId input = pass_.linear_backward(unit, first + 1, saved.rows, shape_.hidden, shape_.ffn,
                                           up, "expert.up");
    pass_.accumulate(input, pass_.linear_backward(unit, first, saved.rows, shape_.hidden,
                                                  shape_.ffn, gate, "expert.gate"));
    recorder_.free(saved.input);
    recorder_.free(input);
  }

  TraceRecorder& recorder_;
  const Scenario& scenario_;
  TransformerShape shape_;
  TransformerPass pass_;
  Draws draws_;
  std::vector<double> bias_;
  std::uint32_t first_expert_ = 0;  // after the router
};

std::vector<std::vector<Parameter>> expert_units(const TransformerShape& shape,
                                                 std::uint64_t experts) {
  std::vector<std::vector<Parameter>> units = model_units(shape);
  std::vector<Parameter> block = attention_layout(shape).parameters;
  block.push_back({"router.weight", shape.hidden * experts});
  for (std::uint64_t e = 0; e < kLocalExperts; ++e) {
    for (const char* name : {"expert.gate", "expert.up", "expert.down"}) {
      block.push_back({name, shape.hidden * shape.ffn});
    }
  }
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) units[layer + 1] = block;
  return units;
}

}  // namespace

void generate_moe(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kMoeRanges);
  TransformerShape& shape = scenario.shape;
  shape.is_gated = true;
  // Experts are narrow: together as wide as two dense MLPs.
  if (options.ffn == 0) shape.ffn = round_up(shape.hidden, 256);
  const auto units = expert_units(shape, scenario.ranks * kLocalExperts);
  StateOptions state_options;
  state_options.weight_bytes = state_options.gradient_bytes = shape.element_bytes;
  state_options.shards = scenario.ranks;
  const std::uint64_t per_token =
      shape.layers * kExpertsPerToken * shape.element_bytes * (2 * shape.hidden + 4 * shape.ffn);
  // Weights and gradients are whole; the optimizer's states, 12 bytes an element, are split.
  const std::uint64_t elements = element_count(units);
  const std::uint64_t state_bytes =
      elements * 2 * shape.element_bytes + elements * 12 / scenario.ranks;
  fit_micro_batch(scenario, {state_bytes, bytes_per_sequence(scenario) +
                                              3 * per_token * scenario.batch.sequence / 2});
  ModelStates states(recorder, units, state_options);
  ExpertLayers layers(recorder, scenario, states);
  TransformerPass& pass = layers.pass();
  const std::size_t head = shape.layers + 1;
  states.allocate_weights();
  run_iterations(recorder, scenario, states, [&] {
    for (std::uint64_t m = 0; m < scenario.micro_batches; ++m) {
      std::vector<SavedLayer> saved(shape.layers);
      SavedHead saved_head;
      PassInputs inputs = pass.begin_inputs();
      BufferId stream = pass.forward_embedding(inputs);
      for (std::size_t unit = 1; unit < head; ++unit) {
        stream = layers.forward(unit, stream, saved[unit - 1]);
      }
      pass.forward_head(head, stream, saved_head);
      BufferId gradient = pass.backward_head(head, saved_head);
      for (std::size_t unit = head - 1; unit > 0; --unit) {
        gradient = layers.backward(unit, gradient, saved[unit - 1]);
      }
      pass.backward_embedding(gradient);
      pass.end_inputs(inputs);
    }
  });
}

}  // namespace sluice::replay::generated
