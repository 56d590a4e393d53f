#include "engine/train/config_resolve.hpp"

#include "base/error.hpp"
#include "engine/train/config_schema.hpp"

namespace sluice {

namespace {

// Tokens of a micro-batch: keeps products with ffn, layers and element size below 2^63.
constexpr std::int64_t kMaxMicroBatchTokens = 1 << 22;
constexpr std::int64_t kMaxRunTokens = std::int64_t{1} << 60;

void require_keys(const Config& config, const ConfigOrigins& origins) {
  // A model that is imported brings its own shape.
  if (!config.model.from.empty()) return;
  for (const ConfigKey& key : config_schema()) {
    if (key.required && !origins.given(key.path)) {
      throw InputError(origins.file() + ": " + key.path + " is missing; it must be " +
                       describe_expected(key));
    }
  }
}

void derive_defaults(Config& config, const ConfigOrigins& origins) {
  auto& model = config.model;
  const bool llama = model.family == Config::Family::kLlama;
  if (!origins.given("model.kv_heads")) model.kv_heads = model.heads;
  if (!origins.given("model.ffn")) {
    model.ffn = llama ? static_cast<std::int64_t>(
                            round_up(ceil_div(static_cast<std::uint64_t>(8 * model.hidden), 3), 64))
                      : 4 * model.hidden;
  }
  if (!origins.given("model.max_seq")) model.max_seq = config.train.seq;
  if (!origins.given("model.tie_embeddings")) model.tie_embeddings = !llama;
  if (config.memory.storage_paths.empty()) {
    config.memory.storage_paths = {config.log.dir + "/storage"};
  }
  if (config.checkpoint.dir.empty()) config.checkpoint.dir = config.log.dir + "/checkpoints";
}

std::string text_of(std::int64_t value) {
  return std::to_string(value);
}

void check_model(const Config& config, const ConfigOrigins& origins) {
  const auto& model = config.model;
  if (!model.from.empty()) return;
  if (model.hidden % model.heads != 0) {
    throw InputError(origins.of("model.heads") + ": model.heads is " + text_of(model.heads) +
                     ", which must divide model.hidden, " + text_of(model.hidden));
  }
  if (model.heads % model.kv_heads != 0) {
    throw InputError(origins.of("model.kv_heads") + ": model.kv_heads is " +
                     text_of(model.kv_heads) + ", which must divide model.heads, " +
                     text_of(model.heads));
  }
  if (model.family == Config::Family::kLlama && model.hidden / model.heads % 2 != 0) {
    throw InputError(origins.of("model.heads") + ": model.hidden / model.heads is " +
                     text_of(model.hidden / model.heads) +
                     ", which must be even for the rotary positions of llama");
  }
  if (config.train.seq > model.max_seq) {
    throw InputError(origins.of("train.seq") + ": train.seq is " + text_of(config.train.seq) +
                     ", which must be at most model.max_seq, " + text_of(model.max_seq));
  }
}

void check_train(const Config& config, const ConfigOrigins& origins) {
  const auto& train = config.train;
  if (train.micro_batch * train.seq > kMaxMicroBatchTokens) {
    throw InputError(origins.of("train.micro_batch") + ": train.micro_batch * train.seq is " +
                     text_of(train.micro_batch * train.seq) + ", which must be at most " +
                     text_of(kMaxMicroBatchTokens));
  }
  // The data order counts samples, the log tokens: both must stay below 2^63.
  std::int64_t tokens = train.micro_batch * train.seq;
  if (__builtin_mul_overflow(tokens, train.accumulate, &tokens) ||
      __builtin_mul_overflow(tokens, train.steps, &tokens) || tokens > kMaxRunTokens) {
    throw InputError(
        origins.of("train.steps") +
        ": train.steps * accumulate * micro_batch * seq, the tokens of the run, must be "
        "at most " +
        text_of(kMaxRunTokens));
  }
  if (train.accumulate % train.fold_groups != 0) {
    throw InputError(origins.of("train.fold_groups") + ": train.fold_groups is " +
                     text_of(train.fold_groups) + ", which must divide train.accumulate, " +
                     text_of(train.accumulate));
  }
  if (train.eval_every > 0 && config.data.eval_fraction == 0.0) {
    throw InputError(origins.of("train.eval_every") +
                     ": train.eval_every needs data.eval_fraction above 0, such as 0.05");
  }
  if (config.log.dir.empty()) {
    throw InputError(origins.of("log.dir") + ": log.dir is empty; it must name a directory");
  }
}

}  // namespace

void resolve_config(Config& config, const ConfigOrigins& origins) {
  require_keys(config, origins);
  derive_defaults(config, origins);
  check_model(config, origins);
  check_train(config, origins);
}

void check_supported(const Config& config) {
  struct Missing {
    bool asked;
    const char* words;
  };
  const auto& parallel = config.parallel;
  const Missing missing[] = {
      {!config.model.from.empty(), "model.from (start from Hugging Face weights)"},
      {config.data.format == DataFormat::kMegatron, "data.format = \"megatron\""},
      {config.train.precision == Config::Precision::kFP16, "train.precision = \"fp16\""},
      {config.train.reduction == Config::Reduction::kSequential,
       "train.reduction = \"sequential\""},
      {config.train.fold_groups > 1, "train.fold_groups above 1"},
      {config.optimizer.states != Config::States::kFP32, "optimizer.states other than \"fp32\""},
      {config.optimizer.placement != Config::OptimizerPlacement::kAuto &&
           config.optimizer.placement != Config::OptimizerPlacement::kAfterBackward,
       "optimizer.placement other than \"auto\" and \"after_backward\""},
      {config.memory.backend == Config::Backend::kCuda, "memory.backend = \"cuda\""},
      {parallel.data > 1, "parallel.data above 1"},
      {parallel.tensor > 1, "parallel.tensor above 1"},
      {parallel.pipeline > 1, "parallel.pipeline above 1"},
      {parallel.context > 1, "parallel.context above 1"},
      {parallel.zero > 0, "parallel.zero above 0"},
      {parallel.schedule != Config::PipelineSchedule::kPlain,
       "parallel.schedule other than \"plain\""},
      {config.checkpoint.mode == Config::CheckpointMode::kDurable, "checkpoint.mode = \"durable\""},
  };
  for (const Missing& item : missing) {
    if (item.asked) throw InputError(std::string(item.words) + " is not available in this version");
  }
}

}  // namespace sluice
