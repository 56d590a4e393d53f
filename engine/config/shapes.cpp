#include "engine/config/shapes.hpp"

#include <array>

namespace sluice::config {

model::ModelShape model_shape(const Config& config) {
  model::ModelShape shape;
  shape.family = config.model.family == Config::Family::kLlama ? model::ModelFamily::kLlama
                                                               : model::ModelFamily::kGpt2;
  shape.layers = config.model.layers;
  shape.hidden = config.model.hidden;
  shape.heads = config.model.heads;
  shape.kv_heads = config.model.kv_heads;
  shape.ffn = config.model.ffn;
  shape.vocab = config.model.vocab;
  shape.max_seq = config.model.max_seq;
  shape.tie_embeddings = config.model.tie_embeddings;
  return shape;
}

model::TensorShare tensor_share(const Config& config, int rank) {
  model::TensorShare share{rank % config.parallel.tensor, config.parallel.tensor,
                           config.parallel.sequence};
  share.contexts = config.parallel.context;
  share.context_rank = rank / config.parallel.tensor % config.parallel.context;
  share.ring = config.parallel.context_attention == Config::ContextAttention::kRing;
  return share;
}

model::BatchShape batch_shape(const Config& config) {
  const auto dtype = [&] {
    switch (config.train.precision) {
      case Config::Precision::kFP32:
        return DType::kF32;
      case Config::Precision::kFP16:
        return DType::kF16;
      case Config::Precision::kBF16:
        break;
    }
    return DType::kBF16;
  };
  return {config.train.micro_batch, config.train.seq, dtype()};
}

kernels::OptimizerOptions optimizer_options(const Config& config) {
  kernels::OptimizerOptions options;
  const auto& optimizer = config.optimizer;
  options.rule = optimizer.name;
  options.weight = batch_shape(config).dtype;
  options.split_master = optimizer.states == Config::States::kSplit;
  constexpr std::array<DType, 3> kMoments{DType::kF32, DType::kBF16, DType::kBlock8};
  options.moments = kMoments.at(static_cast<std::size_t>(optimizer.moments));
  options.beta1 = optimizer.beta1;
  options.beta2 = optimizer.beta2;
  options.epsilon = optimizer.eps;
  options.momentum = optimizer.momentum;
  options.nesterov = optimizer.nesterov;
  options.beta2_decay = optimizer.beta2_decay;
  options.clip_threshold = optimizer.clip_threshold;
  options.seed = config.train.seed;
  return options;
}

// Ranks of another number may go on from a durable run's commits, so these have room for borders.
model::ParameterTable parameter_table(const Config& config, const model::Model& model) {
  using Layout = model::ParameterTable::SumLayout;
  const bool for_shards =
      config.parallel.data > 1 || config.checkpoint.mode == Config::CheckpointMode::kDurable;
  return model::ParameterTable(model, optimizer_options(config), config.optimizer.weight_decay,
                               config.optimizer.groups,
                               for_shards ? Layout::kForShards : Layout::kDense);
}

}  // namespace sluice::config
