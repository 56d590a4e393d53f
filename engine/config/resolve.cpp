#include "engine/config/resolve.hpp"

#include <bit>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "engine/config/schema.hpp"
#include "offload/stripe_layout.hpp"

namespace sluice::config {

namespace {

// Sizes in bits still have room in 64 bits.
constexpr double kMaxParameters = 1e13;
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

std::int64_t usual_virtual_stages(Config::PipelineSchedule schedule) {
  using Schedule = Config::PipelineSchedule;
  const bool several = schedule == Schedule::kInterleaved || schedule == Schedule::kVertical ||
                       schedule == Schedule::kZbV;
  return several ? 2 : 1;
}

// Few enough steps that a schedule stays small, and a whole number of schedules in the run.
std::int64_t usual_updates(const Config& config) {
  if (!config.parallel.delays_updates() || config.train.steps == 0) return 1;
  // A server comes to each rank, or each rank to the server.
  const auto& parallel = config.parallel;
  const bool rotates = parallel.server && parallel.server_mode == Config::ServerMode::kRotating;
  const std::int64_t unit = rotates ? parallel.data : 1;
  std::int64_t updates = std::max<std::int64_t>(16 / unit, 1);
  while (updates > 1 && config.train.steps % (updates * unit) != 0) --updates;
  return updates * unit;
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
  auto& optimizer = config.optimizer;
  if (!origins.given("optimizer.betas") && optimizer.name == kernels::OptimizerRule::kLion) {
    optimizer.beta2 = 0.99;
  }
  if (!origins.given("optimizer.momentum") && optimizer.name == kernels::OptimizerRule::kMuon) {
    optimizer.momentum = 0.95;
  }
  if (!origins.given("parallel.virtual_stages")) {
    config.parallel.virtual_stages = usual_virtual_stages(config.parallel.schedule);
  }
  if (!origins.given("parallel.updates")) config.parallel.updates = usual_updates(config);
  if (config.memory.storage_paths.empty()) {
    config.memory.storage_paths = {config.log.dir + "/storage"};
  }
  if (config.checkpoint.dir.empty()) {
    config.checkpoint.dir = default_checkpoint_dir(config.log.dir);
  }
}

std::string text_of(std::int64_t value) {
  return std::to_string(value);
}

// Matrices alone, in floating point: the product of four keys may pass 2^63.
double parameters_of(const Config& config) {
  const auto& model = config.model;
  const auto hidden = static_cast<double>(model.hidden);
  const auto heads = static_cast<double>(model.heads);
  const auto key_value = hidden * static_cast<double>(model.kv_heads) / heads;
  const double products = config.model.family == Config::Family::kLlama ? 3 : 2;
  const double block = 2 * hidden * hidden + 2 * hidden * key_value +
                       products * hidden * static_cast<double>(model.ffn);
  const double tables = model.tie_embeddings ? 1 : 2;
  return static_cast<double>(model.layers) * block +
         tables * static_cast<double>(model.vocab) * hidden;
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
  const double parameters = parameters_of(config);
  if (parameters > kMaxParameters) {
    throw InputError(origins.of("model.layers") + ": model.layers, model.hidden, model.ffn and " +
                     "model.vocab make " + text_of(static_cast<std::int64_t>(parameters * 1e-9)) +
                     " billion parameters; at most " +
                     text_of(static_cast<std::int64_t>(kMaxParameters * 1e-9)) +
                     " billion can be planned");
  }
  if (config.train.seq > model.max_seq) {
    throw InputError(origins.of("train.seq") + ": train.seq is " + text_of(config.train.seq) +
                     ", which must be at most model.max_seq, " + text_of(model.max_seq));
  }
}

// train.batch, micro_batch and accumulate: two of them give the third.
void divide_batch(Config& config, const ConfigOrigins& origins) {
  auto& train = config.train;
  constexpr std::int64_t kAuto = Config::kAutoCount;
  if (train.batch == 0) {
    for (const auto& [key, value] : {std::pair("train.micro_batch", train.micro_batch),
                                     std::pair("train.accumulate", train.accumulate)}) {
      if (value != kAuto) continue;
      throw InputError(origins.of(key) + ": " + key +
                       " = \"auto\" needs train.batch, the samples " +
                       "of a step, such as train.batch = 16");
    }
    return;
  }
  if (train.micro_batch == kAuto && origins.given("train.accumulate") &&
      train.accumulate != kAuto) {
    throw InputError(origins.of("train.accumulate") + ": train.accumulate is " +
                     text_of(train.accumulate) +
                     ", and train.micro_batch = \"auto\" leaves it to " +
                     "the planner; leave it out, or name train.micro_batch");
  }
  if (!origins.given("train.accumulate")) {
    train.accumulate = kAuto;
  } else if (!origins.given("train.micro_batch")) {
    train.micro_batch = kAuto;
  }
  if (train.micro_batch == kAuto && train.accumulate == kAuto) return;  // the planner's choice
  const auto follow = [&](std::int64_t& missing, const char* key, std::int64_t given) {
    if (train.batch % given != 0) {
      std::string text = origins.of("train.batch") + ": train.batch is " + text_of(train.batch) +
                         ", which must be a multiple of " + key + ", " + text_of(given);
      if (!origins.given(key)) {
        text += " by default; give " + std::string(key) + " a divisor of " + text_of(train.batch) +
                ", or \"auto\", or give train.accumulate";
      }
      throw InputError(text);
    }
    missing = train.batch / given;
  };
  if (train.micro_batch == kAuto) {
    follow(train.micro_batch, "train.accumulate", train.accumulate);
  } else if (train.accumulate == kAuto) {
    follow(train.accumulate, "train.micro_batch", train.micro_batch);
  }
  if (train.batch != train.micro_batch * train.accumulate) {
    throw InputError(origins.of("train.batch") + ": train.batch is " + text_of(train.batch) +
                     ", and train.micro_batch * train.accumulate is " + text_of(train.micro_batch) +
                     " * " + text_of(train.accumulate) + "; leave one of the three out");
  }
}

void check_train(const Config& config, const ConfigOrigins& origins) {
  const auto& train = config.train;
  if (train.micro_batch * train.seq > kMostMicroBatchTokens) {
    throw InputError(origins.of("train.micro_batch") + ": train.micro_batch * train.seq is " +
                     text_of(train.micro_batch * train.seq) + ", which must be at most " +
                     text_of(kMostMicroBatchTokens));
  }
  // The data order counts samples, the log tokens: both must stay below 2^63.
  const bool chosen = train.micro_batch == Config::kAutoCount;
  std::int64_t tokens = (chosen ? train.batch : train.micro_batch) * train.seq;
  if (__builtin_mul_overflow(tokens, chosen ? 1 : train.accumulate, &tokens) ||
      __builtin_mul_overflow(tokens, train.steps, &tokens) || tokens > kMaxRunTokens) {
    throw InputError(
        origins.of("train.steps") +
        ": train.steps * accumulate * micro_batch * seq, the tokens of the run, must be "
        "at most " +
        text_of(kMaxRunTokens));
  }
  if (!std::has_single_bit(static_cast<std::uint64_t>(train.loss_scale))) {
    const auto below =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(train.loss_scale)));
    throw InputError(origins.of("train.loss_scale") + ": train.loss_scale is " +
                     text_of(train.loss_scale) + ", which must be a power of two, such as " +
                     text_of(below));
  }
  if (train.accumulate % train.fold_groups != 0) {
    throw InputError(origins.of("train.fold_groups") + ": train.fold_groups is " +
                     text_of(train.fold_groups) + ", which must divide train.accumulate, " +
                     text_of(train.accumulate));
  }
  if (const auto problem = ranks_problem(config)) {
    throw InputError(origins.of(problem->key) + ": " + problem->sentence);
  }
  if (train.eval_every > 0 && config.data.eval_fraction == 0.0) {
    throw InputError(origins.of("train.eval_every") +
                     ": train.eval_every needs data.eval_fraction above 0, such as 0.05");
  }
  if (config.log.dir.empty()) {
    throw InputError(origins.of("log.dir") + ": log.dir is empty; it must name a directory");
  }
}

void check_optimizer(const Config& config, const ConfigOrigins& origins) {
  const auto& optimizer = config.optimizer;
  const std::string name(kernels::optimizer_rule_name(optimizer.name));
  if (optimizer.states == Config::States::kSplit &&
      config.train.precision != Config::Precision::kBF16) {
    throw InputError(origins.of("optimizer.states") +
                     ": optimizer.states = \"split\" needs train.precision = \"bf16\": it keeps "
                     "the master as a bf16 weight and what that leaves");
  }
  const bool sgd = optimizer.name == kernels::OptimizerRule::kSgd;
  const bool no_moments =
      optimizer.name == kernels::OptimizerRule::kAdafactor || (sgd && optimizer.momentum == 0);
  if (no_moments && optimizer.moments != Config::Moments::kFP32) {
    throw InputError(origins.of("optimizer.moments") + ": optimizer.name = \"" + name +
                     (sgd ? "\" without momentum" : "\"") +
                     " keeps no moment of each element; leave optimizer.moments at \"fp32\"");
  }
  if (optimizer.nesterov && sgd && optimizer.momentum == 0) {
    throw InputError(origins.of("optimizer.nesterov") +
                     ": optimizer.nesterov needs an optimizer.momentum above 0");
  }
}

// An update that is made before the norm is known may not depend on it, but where it can be made
// once more. Then two versions of state are in use, and a commit would need a third.
void check_placement(const Config& config, const ConfigOrigins& origins) {
  if (config.optimizer.placement == Config::OptimizerPlacement::kSpeculative &&
      config.checkpoint.mode == Config::CheckpointMode::kDurable) {
    throw InputError(origins.of("optimizer.placement") +
                     ": optimizer.placement = \"speculative\" needs checkpoint.mode = "
                     "\"scratch\": a durable run keeps one version of the state as its commit, "
                     "and speculation needs two more");
  }
  const bool in_backward = config.optimizer.placement == Config::OptimizerPlacement::kInBackward ||
                           config.optimizer.placement == Config::OptimizerPlacement::kSpeculative;
  if (config.optimizer.carried_units > 0 && !in_backward) {
    throw InputError(origins.of("optimizer.carried_units") +
                     ": optimizer.carried_units needs optimizer.placement = \"in_backward\" or "
                     "\"speculative\": other updates are all in one pass");
  }
  if (config.optimizer.carried_units > 0 &&
      config.checkpoint.mode == Config::CheckpointMode::kDurable) {
    throw InputError(origins.of("optimizer.carried_units") +
                     ": optimizer.carried_units needs checkpoint.mode = \"scratch\": a durable run "
                     "updates all state in the same pass");
  }
  if (config.optimizer.placement != Config::OptimizerPlacement::kInBackward) return;
  const std::string start =
      origins.of("optimizer.placement") + ": optimizer.placement = \"in_backward\" ";
  if (config.train.clip > 0) {
    throw InputError(start +
                     "needs train.clip = 0: clipping needs the norm of all gradients before any "
                     "update");
  }
  if (config.train.precision == Config::Precision::kFP16) {
    throw InputError(start +
                     "needs train.precision = \"bf16\" or \"fp32\": a step of fp16 that overflows "
                     "is known, and skipped, only when all gradients are there");
  }
}

void check_pipeline(const Config& config, const ConfigOrigins& origins) {
  using Schedule = Config::PipelineSchedule;
  const auto& parallel = config.parallel;
  const std::string key = "parallel.virtual_stages";
  const std::int64_t usual = usual_virtual_stages(parallel.schedule);
  const bool any =
      parallel.schedule == Schedule::kInterleaved || parallel.schedule == Schedule::kVertical;
  if (origins.given(key) && !any && parallel.virtual_stages != usual) {
    throw InputError(
        origins.of(key) + ": parallel.virtual_stages is " + text_of(parallel.virtual_stages) +
        (parallel.schedule == Schedule::kCsv
             ? ", and the file of parallel.schedule says the stages of each rank; "
             : ", and each rank of this parallel.schedule has " + text_of(usual) + "; ") +
        "leave it out, or use \"interleaved\" or \"vertical\"");
  }
  if (parallel.pipeline == 1) return;
  if (config.train.order == Config::Order::kUnit) {
    throw InputError(origins.of("train.order") +
                     ": train.order = \"unit\" is an order of one rank; with parallel.pipeline = " +
                     text_of(parallel.pipeline) +
                     " parallel.schedule says the order (\"vertical\" is the nearest); leave "
                     "train.order out");
  }
}

// Stages update by themselves, so nothing may depend on all of them; and a run is only ever saved
// and evaluated where nothing is in flight.
void check_delays(const Config& config, const ConfigOrigins& origins) {
  const auto& parallel = config.parallel;
  const std::string updates = "parallel.updates = " + text_of(parallel.updates);
  if (!parallel.delays_updates()) {
    if (parallel.updates == 1) return;
    throw InputError(origins.of("parallel.updates") + ": " + updates +
                     " has a meaning with parallel.schedule = \"pipedream\", "
                     "\"pipedream-vsync\" or \"2bw\", and with parallel.server_mode = \"asp\" or "
                     "\"rotating\" alone; leave it out, or set it to 1");
  }
  const bool of_server = parallel.has_server_order();
  const std::string who = of_server ? "a server that makes several updates in one schedule "
                                    : "parallel.schedule delays updates and ";
  const auto need = [&](bool holds, const std::string& path, const std::string& rest) {
    if (!holds) throw InputError(origins.of(path) + ": " + who + rest);
  };
  need(of_server || parallel.pipeline > 1, "parallel.pipeline",
       "needs parallel.pipeline of at least 2: one rank delays nothing");
  need(config.train.clip == 0, "train.clip",
       of_server
           ? "needs train.clip = 0: units are updated before the gradients of others are there, "
             "so clipping by their norm has no meaning"
           : "needs train.clip = 0: a stage updates before the gradients of other stages are "
             "there, so clipping by their norm has no meaning");
  need(config.train.precision != Config::Precision::kFP16, "train.precision",
       "needs train.precision = \"bf16\" or \"fp32\": an overflow of fp16 is known only when "
       "all gradients are there");
  using Placement = Config::OptimizerPlacement;
  need(config.optimizer.placement == Placement::kAuto ||
           config.optimizer.placement == Placement::kInBackward,
       "optimizer.placement", "makes each in the backward pass; leave optimizer.placement out");
  need(config.optimizer.carried_units <= 0, "optimizer.carried_units",
       "carries none into the next step; leave optimizer.carried_units out");
  need(config.checkpoint.mode == Config::CheckpointMode::kScratch, "checkpoint.mode",
       "needs checkpoint.mode = \"scratch\": a durable run commits after any step");
  need(config.train.fold_groups == 1, "train.fold_groups", "needs train.fold_groups = 1");
  need(!config.model.tie_embeddings, "model.tie_embeddings",
       "needs model.tie_embeddings = false: the gradient of a tied head comes long before that of "
       "its embedding, and its weights have other versions");
  for (const auto& [path, count] : {std::pair("train.steps", config.train.steps),
                                    std::pair("train.eval_every", config.train.eval_every),
                                    std::pair("checkpoint.every", config.checkpoint.every)}) {
    need(count % parallel.updates == 0, path,
         std::string("needs ") + path + " to be a multiple of " + updates +
             ", the steps between two points at which nothing is in flight");
  }
}

// A place that nothing takes would be taken for a setting that works.
void check_saved_places(const Config& config, const ConfigOrigins& origins) {
  if (config.recompute.policy != Config::Recompute::kUnit) return;
  for (const auto& [part, place] : config.memory.place.saved) {
    if (place == Config::Place::kAuto) continue;
    const std::string path = "memory.place.saved." + part;
    throw InputError(origins.of(path) + ": " + shown(path) +
                     " has no meaning with recompute.policy = \"unit\", where units save nothing "
                     "between their passes; use \"none\" or \"auto\", or leave it out");
  }
}

// Twice the same directory would count its room and its bandwidth twice.
void check_storage_paths(const Config& config, const ConfigOrigins& origins) {
  std::set<std::filesystem::path> seen;
  for (const std::string& path : config.memory.storage_paths) {
    if (!seen.insert((std::filesystem::path(path) / "").lexically_normal()).second) {
      throw InputError(origins.of("memory.storage_paths") + ": memory.storage_paths names '" +
                       path + "' twice; each must be another directory");
    }
  }
  constexpr std::size_t kMostPaths = 512;  // a stripe layout holds some stripes of each
  if (config.memory.storage_paths.size() > kMostPaths) {
    throw InputError(origins.of("memory.storage_paths") + ": memory.storage_paths names " +
                     std::to_string(config.memory.storage_paths.size()) +
                     " directories; there can be at most " + std::to_string(kMostPaths));
  }
}

void check_storage_shares(const Config& config, const ConfigOrigins& origins) {
  const std::vector<double>& shares = config.memory.storage_shares;
  const std::size_t paths = config.memory.storage_paths.size();
  if (shares.empty()) return;
  const std::string start = origins.of("memory.storage_shares") + ": memory.storage_shares ";
  if (shares.size() != paths) {
    throw InputError(start + "has " + std::to_string(shares.size()) +
                     " numbers and memory.storage_paths " + std::to_string(paths) +
                     " directories; give one for each");
  }
  if (offload::is_possible_ratio(shares)) return;
  const std::string most = std::to_string(offload::StripeLayout::kMostStripes);
  throw InputError(start + "gives a path less than 1/" + most +
                   " of the whole, which is the least that it can take; the largest ratio of two "
                   "of " +
                   std::to_string(paths) + " paths is " +
                   std::to_string(offload::StripeLayout::kMostStripes - paths + 1) + " to 1");
}

// A setting that pread ignores would be taken for one that works.
void check_storage_engine(const Config& config, const ConfigOrigins& origins) {
  const auto& memory = config.memory;
  if (!memory.storage_sqpoll || memory.storage_engine != Config::StorageEngineKind::kPosix) return;
  throw InputError(origins.of("memory.storage_sqpoll") +
                   ": memory.storage_sqpoll is io_uring's and has no meaning with "
                   "memory.storage_engine = \"posix\"; use \"io_uring\" or \"auto\", or leave it "
                   "out");
}

// Bounds of a step have seconds of copies next to seconds of compute. A memory of 1 TB/s and a link
// of 1 MB/s are a million apart, which the linear program (planner/linear_program.hpp) tells well.
void check_link(const Config& config, const ConfigOrigins& origins) {
  constexpr double kLeastBytesPerS = 1e6;
  const double bytes_per_s = config.memory.link_bandwidth_bytes_per_s;
  if (bytes_per_s == 0 || bytes_per_s >= kLeastBytesPerS) return;
  throw InputError(origins.of("memory.link_bandwidth") +
                   ": memory.link_bandwidth is less than 1 MB/s; use 0 for no model of a link, or "
                   "a speed such as \"16GiB/s\"");
}

void check_transport(const Config& config, const ConfigOrigins& origins) {
  if (config.parallel.transport == Config::Transport::kAuto ||
      config.memory.backend != Config::Backend::kHost) {
    return;
  }
  throw InputError(origins.of("parallel.transport") +
                   ": parallel.transport says how the memory of GPUs travels and has no meaning "
                   "with memory.backend = \"host\"; use \"auto\", or leave it out");
}

}  // namespace

std::string default_checkpoint_dir(const std::string& log_dir) {
  return log_dir + "/checkpoints";
}

Config derived_anew(const Config& config) {
  Config anew = config;
  anew.memory.storage_paths.clear();
  anew.checkpoint.dir.clear();
  derive_defaults(anew, ConfigOrigins(""));
  return anew;
}

void resolve_config(Config& config, const ConfigOrigins& origins) {
  require_keys(config, origins);
  derive_defaults(config, origins);
  check_model(config, origins);
  divide_batch(config, origins);
  check_train(config, origins);
  check_optimizer(config, origins);
  check_placement(config, origins);
  check_saved_places(config, origins);
  check_storage_paths(config, origins);
  check_storage_shares(config, origins);
  check_storage_engine(config, origins);
  check_link(config, origins);
  check_transport(config, origins);
  check_pipeline(config, origins);
  check_delays(config, origins);
  check_resting_keys(config, origins);
}

}  // namespace sluice::config
