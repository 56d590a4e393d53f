// 553 lines because all keys are in one table.
#include "engine/config/schema.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/dtype.hpp"

namespace sluice::config {

namespace {

constexpr std::int64_t kMaxSteps = 1'000'000'000'000;
constexpr double kHuge = 1e15;

// Sizes are bounded so that no product of them (elements, bytes, FLOPs of a step) passes 2^63:
// 2^12 layers * 2^18 hidden * 2^20 ffn * 3 matrices * 18 bytes < 2^56.
constexpr std::int64_t kMaxLayers = 1 << 12;
constexpr std::int64_t kMaxHidden = 1 << 18;
constexpr std::int64_t kMaxHeads = 1 << 14;
constexpr std::int64_t kMaxFfn = 1 << 20;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxSeq = 1 << 20;
constexpr std::int64_t kMaxBatch = 1 << 20;
constexpr std::int64_t kMaxRanks = 1 << 20;
constexpr std::int64_t kMaxBudget = std::int64_t{1} << 50;  // 1 PiB
constexpr std::int64_t kMaxChunk = std::int64_t{1} << 30;

// A member of a Config, as functions of one: the templates below exist once for each type.
template <class Member>
struct Field {
  const Member& (*read)(const Config&);
  Member& (*change)(Config&);

  const Member& operator()(const Config& config) const { return read(config); }
  Member& operator()(Config& config) const { return change(config); }
};
template <class Member>
Field<Member> field_of(const Member& (*read)(const Config&), Member& (*change)(Config&)) {
  return {read, change};
}
#define SLUICE_FIELD(member)                              \
  field_of(                                               \
      +[](const Config& c) -> auto& { return c.member; }, \
      +[](Config & c) -> auto& { return c.member; })

template <class Member>
ConfigKey make_key(std::string_view path, ConfigKind kind, std::string_view doc,
                   Field<Member> field) {
  ConfigKey key;
  key.path = path;
  key.kind = kind;
  key.doc = doc;
  constexpr bool whole =
      (std::is_integral_v<Member> && !std::is_same_v<Member, bool>) || std::is_enum_v<Member>;
  if constexpr (!std::is_enum_v<Member>) {
    using Stored = std::conditional_t<whole, std::int64_t, Member>;
    key.read = [field](const Config& config) {
      return ConfigValue(static_cast<Stored>(field(config)));
    };
    key.assign = [field](Config& config, const ConfigValue& value) {
      field(config) = static_cast<Member>(std::get<Stored>(value));
    };
  }
  return key;
}

template <class Member>
ConfigKey integer(std::string_view path, Field<Member> field, std::int64_t least, std::int64_t most,
                  std::string_view doc) {
  ConfigKey key = make_key(path, ConfigKind::kInteger, doc, field);
  key.least = least;
  key.most = most;
  return key;
}

// The field holds Config::kAutoCount for "auto".
template <class Member>
ConfigKey integer_or_auto(std::string_view path, Field<Member> field, std::int64_t least,
                          std::int64_t most, std::string_view doc) {
  ConfigKey key = integer(path, field, least, most, doc);
  key.kind = ConfigKind::kIntegerOrAuto;
  key.read = [field](const Config& config) {
    const std::int64_t value = field(config);
    return value == Config::kAutoCount ? ConfigValue(std::string("auto")) : ConfigValue(value);
  };
  key.assign = [field](Config& config, const ConfigValue& value) {
    const auto* number = std::get_if<std::int64_t>(&value);
    field(config) = number ? *number : Config::kAutoCount;
  };
  return key;
}

template <class Member>
ConfigKey bytes(std::string_view path, Field<Member> field, std::int64_t least, std::int64_t most,
                std::string_view doc) {
  ConfigKey key = make_key(path, ConfigKind::kBytes, doc, field);
  key.least = least;
  key.most = most;
  return key;
}

// The field holds Config::kAutoBytes for "auto".
template <class Member>
ConfigKey bytes_or_auto(std::string_view path, Field<Member> field, std::int64_t least,
                        std::int64_t most, std::string_view doc) {
  ConfigKey key = bytes(path, field, least, most, doc);
  key.kind = ConfigKind::kBytesOrAuto;
  key.read = [field](const Config& config) {
    const std::uint64_t value = field(config);
    return value == Config::kAutoBytes ? ConfigValue(std::string("auto"))
                                       : ConfigValue(static_cast<std::int64_t>(value));
  };
  key.assign = [field](Config& config, const ConfigValue& value) {
    const auto* number = std::get_if<std::int64_t>(&value);
    field(config) = number ? static_cast<std::uint64_t>(*number) : Config::kAutoBytes;
  };
  return key;
}

template <class Member>
ConfigKey real(std::string_view path, Field<Member> field, double lower, double upper,
               std::string_view doc, ConfigKind kind = ConfigKind::kReal) {
  ConfigKey key = make_key(path, kind, doc, field);
  key.lower = lower;
  key.upper = upper;
  return key;
}

template <class Member>
ConfigKey choice(std::string_view path, Field<Member> field,
                 const std::vector<std::string>& choices, std::string_view doc) {
  ConfigKey key = make_key(path, ConfigKind::kChoice, doc, field);
  key.choices = choices;
  key.read = [field, choices](const Config& config) {
    return ConfigValue(choices.at(static_cast<std::size_t>(field(config))));
  };
  key.assign = [field, choices](Config& config, const ConfigValue& value) {
    const auto& text = std::get<std::string>(value);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == text) field(config) = static_cast<Member>(i);
    }
  };
  return key;
}

template <class Member>
ConfigKey text(std::string_view path, Field<Member> field, std::string_view doc) {
  return make_key(path, ConfigKind::kText, doc, field);
}

template <class Member>
ConfigKey texts(std::string_view path, Field<Member> field, std::string_view doc) {
  return make_key(path, ConfigKind::kTextList, doc, field);
}

// A choice of which one has a count: "every:8".
ConfigKey recompute_policy() {
  ConfigKey key = choice(
      "recompute.policy", SLUICE_FIELD(recompute.policy),
      {"none", "unit", "selective", "attention", "every:K", "sqrt", "auto"},
      "values made again in the backward pass. unit: all that a block saves, from its input; "
      "selective: what its norms and elementwise operations make; attention: what its attention "
      "makes; every:K: all that each K blocks save, and their outputs, from the input of the "
      "first; "
      "sqrt: every:K with the square root of the blocks");
  key.least = 1;
  key.most = kMaxLayers;
  const std::string counted = "every:";
  key.read = [read = key.read, counted](const Config& config) {
    if (config.recompute.policy != Config::Recompute::kEvery) return read(config);
    return ConfigValue(counted + std::to_string(config.recompute.every));
  };
  key.assign = [assign = key.assign, counted](Config& config, const ConfigValue& value) {
    const auto& text = std::get<std::string>(value);
    if (!text.starts_with(counted)) return assign(config, value);
    config.recompute.policy = Config::Recompute::kEvery;
    config.recompute.every = std::stoll(text.substr(counted.size()));
  };
  return key;
}

// A choice of which one has a file: "csv:order.csv".
ConfigKey pipeline_schedule() {
  ConfigKey key = choice(
      "parallel.schedule", SLUICE_FIELD(parallel.schedule),
      {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "vertical", "pipedream",
       "pipedream-vsync", "2bw", "csv:FILE"},
      "order of a pipeline's passes. pipedream, pipedream-vsync, 2bw: micro-batches read weights "
      "without the newest updates, which changes results. csv: the order in a file of torch's "
      "pipelining format");
  const std::string named = "csv:";
  key.read = [read = key.read, named](const Config& config) {
    if (config.parallel.schedule != Config::PipelineSchedule::kCsv) return read(config);
    return ConfigValue(named + config.parallel.schedule_file);
  };
  key.assign = [assign = key.assign, named](Config& config, const ConfigValue& value) {
    const auto& text = std::get<std::string>(value);
    config.parallel.schedule_file.clear();
    if (!text.starts_with(named)) return assign(config, value);
    config.parallel.schedule = Config::PipelineSchedule::kCsv;
    config.parallel.schedule_file = text.substr(named.size());
  };
  return key;
}

ConfigKey named_places(std::string_view path, const std::vector<std::string>& choices,
                       std::string_view doc) {
  ConfigKey key;
  key.path = path;
  key.kind = ConfigKind::kPlaces;
  key.doc = doc;
  key.choices = choices;
  key.read = [choices](const Config& config) {
    std::map<std::string, std::string> named;
    for (const auto& [name, place] : config.memory.place.saved) {
      named[name] = choices.at(static_cast<std::size_t>(place));
    }
    return ConfigValue(std::move(named));
  };
  key.assign = [choices](Config& config, const ConfigValue& value) {
    config.memory.place.saved.clear();
    for (const auto& [name, place] : std::get<std::map<std::string, std::string>>(value)) {
      const auto at = std::find(choices.begin(), choices.end(), place) - choices.begin();
      config.memory.place.saved[name] = static_cast<Config::Place>(at);
    }
  };
  return key;
}

ConfigKey required(ConfigKey key) {
  key.required = true;
  return key;
}
ConfigKey derived(ConfigKey key, std::string_view words) {
  key.derived_default = words;
  return key;
}
ConfigKey decisive(ConfigKey key) {
  key.determines_result = true;
  return key;
}

using Keys = std::vector<ConfigKey>;

void add_model(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(decisive(std::move(key))); };
  add(choice("model.family", SLUICE_FIELD(model.family), {"gpt2", "llama"},
             "gpt2: LayerNorm, GELU, learned positions; llama: RMSNorm, SwiGLU, RoPE"));
  add(required(
      integer("model.layers", SLUICE_FIELD(model.layers), 1, kMaxLayers, "transformer blocks")));
  add(required(integer("model.hidden", SLUICE_FIELD(model.hidden), 1, kMaxHidden,
                       "width of the residual stream; a multiple of model.heads")));
  add(required(integer("model.heads", SLUICE_FIELD(model.heads), 1, kMaxHeads,
                       "query heads; for llama model.hidden / model.heads is even")));
  add(derived(integer("model.kv_heads", SLUICE_FIELD(model.kv_heads), 1, kMaxHeads,
                      "key and value heads; divides model.heads"),
              "model.heads"));
  add(derived(integer("model.ffn", SLUICE_FIELD(model.ffn), 1, kMaxFfn,
                      "inner width of the feed-forward layer"),
              "gpt2: 4 * hidden; llama: 8/3 * hidden, rounded up to a multiple of 64"));
  add(integer("model.vocab", SLUICE_FIELD(model.vocab), 2, kMaxVocab,
              "tokens known; 256 for bytes"));
  add(derived(integer("model.max_seq", SLUICE_FIELD(model.max_seq), 1, kMaxSeq,
                      "longest sequence; gpt2 has a learned position for each"),
              "train.seq"));
  add(derived(
      make_key("model.tie_embeddings", ConfigKind::kBool, "the head shares the embedding's weights",
               SLUICE_FIELD(model.tie_embeddings)),
      "gpt2: true; llama: false"));
  add(text("model.from", SLUICE_FIELD(model.from),
           "Hugging Face directory to start from; empty: fresh weights"));
}

void add_data(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(decisive(std::move(key))); };
  add(texts("data.paths", SLUICE_FIELD(data.paths), "files or directories (taken recursively)"));
  add(choice("data.format", SLUICE_FIELD(data.format), {"bytes", "llmc", "megatron"},
             "bytes: any text, a token per byte; llmc: llm.c's .bin"));
  auto fraction = real("data.eval_fraction", SLUICE_FIELD(data.eval_fraction), 0.0, 1.0,
                       "the last part of the tokens, kept for evaluation");
  fraction.upper_excluded = true;
  add(std::move(fraction));
}

void add_train(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(std::move(key)); };
  add(decisive(integer("train.steps", SLUICE_FIELD(train.steps), 0, kMaxSteps,
                       "optimizer steps; 0 writes the initial weights")));
  add(decisive(integer("train.seq", SLUICE_FIELD(train.seq), 1, kMaxSeq, "tokens per sample")));
  add(integer(
      "train.batch", SLUICE_FIELD(train.batch), 0, kMaxBatch,
      "samples per step, micro_batch * accumulate: if it is set, one of the two may be left "
      "out; 0: it follows from them"));
  add(decisive(integer_or_auto(
      "train.micro_batch", SLUICE_FIELD(train.micro_batch), 1, kMaxBatch,
      "samples per micro-batch; auto: the divisor of train.batch with the shortest planned step. "
      "Its choice depends on the machine, and micro-batches of another size round results "
      "otherwise; a resumed run keeps it")));
  add(decisive(derived(integer_or_auto("train.accumulate", SLUICE_FIELD(train.accumulate), 1,
                                       kMaxBatch, "micro-batches per step"),
                       "1; with train.batch: train.batch / train.micro_batch")));
  add(decisive(choice("train.precision", SLUICE_FIELD(train.precision), {"bf16", "fp32", "fp16"},
                      "of weights, activations and gradients; sums are fp32")));
  add(decisive(choice("train.loss_scaling", SLUICE_FIELD(train.loss_scaling), {"dynamic", "static"},
                      "fp16: halve the loss scale and skip the step where a gradient overflows, "
                      "double it after train.loss_scale_window good steps; static: skip only")));
  add(decisive(
      integer("train.loss_scale", SLUICE_FIELD(train.loss_scale), 1, kMaxLossScale,
              "fp16: what the loss is multiplied by, at first or always; a power of two")));
  add(decisive(integer("train.loss_scale_window", SLUICE_FIELD(train.loss_scale_window), 1,
                       kMaxSteps, "fp16: steps without overflow before the scale is doubled")));
  add(integer("train.loss_scale_patience", SLUICE_FIELD(train.loss_scale_patience), 1, kMaxSteps,
              "fp16: overflows in a row that end the run"));
  add(decisive(integer("train.seed", SLUICE_FIELD(train.seed), 0,
                       std::numeric_limits<std::int64_t>::max(), "of weights and data order")));
  add(decisive(real("train.clip", SLUICE_FIELD(train.clip), 0.0, kHuge,
                    "largest global gradient norm; 0: no clipping")));
  add(choice("train.order", SLUICE_FIELD(train.order), {"auto", "microbatch", "unit"},
             "unit: all micro-batches of a unit before the next one, so that its weights are "
             "fetched once; microbatch: one micro-batch after another, whose activations are less; "
             "auto: the faster one that fits. Results are the same"));
  add(integer("train.eval_every", SLUICE_FIELD(train.eval_every), 0, kMaxSteps,
              "steps between evaluations; 0: never"));
  add(decisive(choice("train.reduction", SLUICE_FIELD(train.reduction), {"grouped", "sequential"},
                      "how data-parallel gradients are summed")));
  add(decisive(integer("train.fold_groups", SLUICE_FIELD(train.fold_groups), 1, kMaxRanks,
                       "sum gradients as this many data-parallel ranks would; divides "
                       "train.accumulate")));
  add(integer(
      "train.threads", SLUICE_FIELD(train.threads), 0, 4096,
      "compute threads, fixed for the run; 0: one per logical processor that the process may use"));
}

void add_optimizer(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(decisive(std::move(key))); };
  add(choice("optimizer.name", SLUICE_FIELD(optimizer.name),
             {"adamw", "adam", "sgd", "lion", "adafactor", "sm3", "muon"}, "the update rule"));
  add(real("optimizer.lr", SLUICE_FIELD(optimizer.lr), 0.0, 1e6,
           "peak learning rate; rules want different ones (sgd about 0.1, adafactor 0.01, sm3 0.1, "
           "lion a third of adamw's)"));
  ConfigKey betas;
  betas.path = "optimizer.betas";
  betas.kind = ConfigKind::kRealPair;
  betas.doc = "decay of the two moments (adamw, adam, lion, muon's adamw; sm3 the first)";
  betas.derived_default = "[0.9, 0.95]; lion [0.9, 0.99]";
  betas.upper = 1.0;
  betas.upper_excluded = true;
  betas.read = [](const Config& config) {
    return ConfigValue(std::vector<double>{config.optimizer.beta1, config.optimizer.beta2});
  };
  betas.assign = [](Config& config, const ConfigValue& value) {
    const auto& pair = std::get<std::vector<double>>(value);
    config.optimizer.beta1 = pair.at(0);
    config.optimizer.beta2 = pair.at(1);
  };
  add(std::move(betas));
  // From the least normal fp32 number on: 0 / 0 would be made of a gradient that is zero.
  add(real("optimizer.eps", SLUICE_FIELD(optimizer.eps), 0x1p-126, 1.0,
           "added to the root of the second moment (adamw, adam, muon's adamw)"));
  auto momentum = real("optimizer.momentum", SLUICE_FIELD(optimizer.momentum), 0.0, 1.0,
                       "of sgd (0: none, and no state) and of muon");
  momentum.upper_excluded = true;
  momentum.derived_default = "0.9; muon 0.95";
  add(std::move(momentum));
  add(make_key("optimizer.nesterov", ConfigKind::kBool, "sgd looks ahead",
               SLUICE_FIELD(optimizer.nesterov)));
  auto decay = real("optimizer.beta2_decay", SLUICE_FIELD(optimizer.beta2_decay), -1.0, 0.0,
                    "adafactor: the second moment forgets by 1 - step^beta2_decay");
  add(std::move(decay));
  auto threshold = real("optimizer.clip_threshold", SLUICE_FIELD(optimizer.clip_threshold), 0.0,
                        kHuge, "adafactor: largest root mean square of a tensor's update");
  threshold.lower_excluded = true;
  add(std::move(threshold));
  add(real("optimizer.weight_decay", SLUICE_FIELD(optimizer.weight_decay), 0.0, 1e3,
           "of matrices and tables; biases and norms have none. Added to the gradient by adam and "
           "sgd, taken off the weight by the others"));
  add(make_key("optimizer.groups", ConfigKind::kGroups,
               "tensors with another learning rate or decay; the first group that matches counts",
               SLUICE_FIELD(optimizer.groups)));
  add(integer("optimizer.warmup", SLUICE_FIELD(optimizer.warmup), 0, kMaxSteps,
              "steps of linear rise to the peak"));
  add(choice("optimizer.schedule", SLUICE_FIELD(optimizer.schedule), {"cosine", "constant"},
             "after the warmup; cosine falls to a tenth of the peak"));
  add(choice("optimizer.states", SLUICE_FIELD(optimizer.states), {"fp32", "split"},
             "how master weights are stored; split: as the bf16 weight and 16 more bits, "
             "lossless, 2 bytes less to keep and 6 less to move for each parameter"));
  add(choice("optimizer.moments", SLUICE_FIELD(optimizer.moments), {"fp32", "bf16", "8bit"},
             "how moments are stored: fp32, bf16 rounded at random, or 8 bits and a scale for each "
             "128; the last two change results"));
  keys.push_back(
      choice("optimizer.placement", SLUICE_FIELD(optimizer.placement),
             {"auto", "after_backward", "in_backward", "next_forward", "speculative"},
             "where in a step the update runs: after the backward pass; in it, each unit "
             "once its gradient is complete (needs train.clip = 0, not with fp16); in "
             "the next step's forward pass, each unit before its weights are needed; "
             "speculative: in the backward pass with the old state kept, and once more where "
             "clipping asks for it (a second version of state; checkpoint.mode = scratch); "
             "auto: the fastest that fits, never speculative. Results are the same"));
  keys.push_back(integer("optimizer.carried_units", SLUICE_FIELD(optimizer.carried_units), -1,
                         kMaxLayers + 2,
                         "in_backward and speculative: units, from the first on, whose update runs "
                         "in the next forward pass instead, where their state need not be kept "
                         "twice; -1: the fastest number"));
}

void add_memory(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(std::move(key)); };
  const std::vector<std::string> places{"auto", "device", "pinned", "storage"};
  add(choice("memory.backend", SLUICE_FIELD(memory.backend), {"auto", "host", "cuda"},
             "the device; auto: a GPU where there is one"));
  add(bytes_or_auto("memory.device", SLUICE_FIELD(memory.device_bytes), 0, kMaxBudget,
                    "budget of device memory; auto: the free memory of the GPU, or with --hardware "
                    "the profile's, less a reserve (on a CPU half of the host's)"));
  add(bytes_or_auto("memory.pinned", SLUICE_FIELD(memory.pinned_bytes), 0, kMaxBudget,
                    "budget of pinned host memory; auto: the free memory of the host, or with "
                    "--hardware the profile's, less an eighth, shared by the ranks of a node"));
  add(bytes_or_auto("memory.storage", SLUICE_FIELD(memory.storage_bytes), 0, kMaxBudget,
                    "budget of storage, over all paths; auto: what is free there, at most 64GiB"));
  add(derived(texts("memory.storage_paths", SLUICE_FIELD(memory.storage_paths),
                    "directories for state on storage; striped when several"),
              "[log.dir + \"/storage\"]"));
  ConfigKey shares = real("memory.storage_shares", SLUICE_FIELD(memory.storage_shares), 0, 1e15,
                          "how much of it each path takes, by any one measure, such as [3, 1]; "
                          "none: by speed, measured when a run begins",
                          ConfigKind::kRealList);
  shares.lower_excluded = true;
  add(std::move(shares));
  add(choice("memory.storage_engine", SLUICE_FIELD(memory.storage_engine),
             {"auto", "io_uring", "posix"}, "auto: io_uring where the kernel allows it"));
  add(make_key("memory.storage_sqpoll", ConfigKind::kBool,
               "io_uring: a kernel thread takes what is submitted; it costs most of a core",
               SLUICE_FIELD(memory.storage_sqpoll)));
  auto chunk = bytes("memory.chunk", SLUICE_FIELD(memory.chunk_bytes), kPageBytes, kMaxChunk,
                     "the unit of transfer between tiers");
  chunk.multiple_of = kPageBytes;
  add(std::move(chunk));
  add(integer("memory.prefetch", SLUICE_FIELD(memory.prefetch), 0, 1024,
              "units fetched ahead of their use"));
  add(bytes_or_auto("memory.update_ring", SLUICE_FIELD(memory.update_ring_bytes), 0, kMaxBudget,
                    "pinned memory, at most, beyond the usual staging, by which updates may run "
                    "ahead of the storage that feeds them; auto: spare memory, as far as it makes "
                    "a step shorter"));
  add(choice("memory.place.weight", SLUICE_FIELD(memory.place.weight), places,
             "where weights rest; auto: the fastest tier with room"));
  add(choice("memory.place.gradient", SLUICE_FIELD(memory.place.gradient), places,
             "where gradients rest"));
  add(choice(
      "memory.place.optimizer", SLUICE_FIELD(memory.place.optimizer), places,
      "where master weights and moments rest; \"device\" needs weight and gradient there too"));
  add(choice("memory.place.activation", SLUICE_FIELD(memory.place.activation), places,
             "where activations wait between forward and backward pass; auto: on the device, or "
             "away where that fits or is faster"));
  add(choice(
      "memory.place.partial", SLUICE_FIELD(memory.place.partial), places,
      "where a rank among others keeps its fp32 sums of several micro-batches until it sends "
      "them (train.fold_groups above 1); auto: where they fit and cost least"));
  add(named_places("memory.place.saved", places,
                   "where parts of what forward passes save for backward wait, by name (docs/"
                   "guide/memory.md); \"*\": those not named; auto, or not given: as "
                   "memory.place.activation. Of units that are not recomputed"));
  add(real("memory.link_bandwidth", SLUICE_FIELD(memory.link_bandwidth_bytes_per_s), 0.0, kHuge,
           "host device: modelled bandwidth of each direction of the link; 0: off",
           ConfigKind::kRate));
  add(real("memory.link_latency", SLUICE_FIELD(memory.link_latency_s), 0.0, 1.0,
           "host device: modelled latency of a copy; 0: off", ConfigKind::kDuration));
}

void add_parallel(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(std::move(key)); };
  add(integer("parallel.data", SLUICE_FIELD(parallel.data), 1, kMaxRanks, "data-parallel ranks"));
  add(integer("parallel.tensor", SLUICE_FIELD(parallel.tensor), 1, kMaxRanks,
              "ranks that have parts of each layer and compute each micro-batch together (docs/"
              "guide/tensor.md)"));
  add(choice("parallel.tensor_mode", SLUICE_FIELD(parallel.tensor_mode), {"1d", "2d", "2.5d", "3d"},
             "how tensor-parallel ranks divide a matrix. 1d: by rows or by columns, as Megatron-LM "
             "does; 2d, 2.5d, 3d: by both"));
  add(make_key(
      "parallel.sequence", ConfigKind::kBool,
      "tensor-parallel ranks keep activations outside of the products for their own rows of "
      "a micro-batch; needs parallel.tensor above 1",
      SLUICE_FIELD(parallel.sequence)));
  add(integer("parallel.pipeline", SLUICE_FIELD(parallel.pipeline), 1, kMaxRanks,
              "ranks of a pipeline, each with a part of the layers"));
  add(integer("parallel.context", SLUICE_FIELD(parallel.context), 1, kMaxRanks,
              "ranks that have parts of each sequence, and attend to all of it together (docs/"
              "guide/tensor.md)"));
  add(choice(
      "parallel.context_attention", SLUICE_FIELD(parallel.context_attention),
      {"all-to-all", "ring"},
      "all-to-all: context ranks exchange rows of all heads for all rows of some; they divide the "
      "heads. ring: they pass keys and values on, any number of them; it sends less where "
      "key/value heads are few. Without a meaning where parallel.context is 1"));
  add(integer("parallel.zero", SLUICE_FIELD(parallel.zero), 0, 3, "ZeRO stage"));
  add(make_key("parallel.server", ConfigKind::kBool,
               "rank 0 is a parameter server: it sums all gradients, keeps all optimizer state, "
               "updates, and sends the weights; with parallel.zero = 0. Results are the same",
               SLUICE_FIELD(parallel.server)));
  add(choice(
      "parallel.server_mode", SLUICE_FIELD(parallel.server_mode), {"bsp", "asp", "rotating"},
      "how the server of parallel.server updates. bsp: after each step, of all ranks. asp: of "
      "each micro-batch by itself, in a seeded order of ranks, whose weights lack the newest "
      "updates; this changes results. rotating: as bsp, but step s is served by rank s modulo "
      "parallel.data"));
  add(integer(
      "parallel.node_ranks", SLUICE_FIELD(parallel.node_ranks), 0, kMaxRanks,
      "consecutive ranks, 2, 4, 8, ..., that sum gradients among themselves before they "
      "exchange with other nodes, with train.fold_groups above 1; 0: all exchange with each "
      "other. Results are the same"));
  add(decisive(choice("parallel.reduction", SLUICE_FIELD(parallel.reduction), {"tree", "ring"},
                      "ring: the classical ring all-reduce, with parallel.zero = 0. Its results "
                      "depend on the number "
                      "of ranks; those of tree do not")));
  add(bytes(
      "parallel.bucket", SLUICE_FIELD(parallel.bucket_bytes), 64 * 1024, 1 << 30,
      "parallel.zero = 0: fp32 sums, or as many gradients, that travel at once, of all ranks' "
      "parts"));
  add(choice(
      "parallel.transport", SLUICE_FIELD(parallel.transport), {"auto", "gloo", "nccl"},
      "what carries the collectives of GPUs. gloo: through pinned memory. nccl: from one GPU "
      "to another; each rank needs its own. auto: nccl where all ranks can. Results are the "
      "same"));
  add(pipeline_schedule());
  add(derived(
      integer("parallel.virtual_stages", SLUICE_FIELD(parallel.virtual_stages), 1, kMaxLayers,
              "stages of each pipeline rank; interleaved and vertical take any number"),
      "1; interleaved, vertical and zb-v: 2"));
  add(derived(
      integer(
          "parallel.updates", SLUICE_FIELD(parallel.updates), 1, 1024,
          "pipedream, pipedream-vsync, 2bw, and server_mode asp and rotating: steps between two "
          "points at which nothing is in flight and all weights have all updates"),
      "1; where it has a meaning: the largest divisor of train.steps up to 16"));
}

void add_run(Keys& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(std::move(key)); };
  add(derived(text("checkpoint.dir", SLUICE_FIELD(checkpoint.dir),
                   "where checkpoints go; if set, each run has its own directory there"),
              "log.dir + \"/checkpoints\""));
  add(integer("checkpoint.every", SLUICE_FIELD(checkpoint.every), 0, kMaxSteps,
              "steps between checkpoints; 0: only at the end and on a stop"));
  add(make_key("checkpoint.final", ConfigKind::kBool,
               "save a checkpoint and the weights when the last step is done; a stop always saves",
               SLUICE_FIELD(checkpoint.final)));
  add(choice(
      "checkpoint.mode", SLUICE_FIELD(checkpoint.mode), {"scratch", "durable"},
      "durable: the state on storage is the checkpoint; a crash costs the steps since the last"));
  add(text("log.dir", SLUICE_FIELD(log.dir),
           "where each start makes the directory of its run: 0001, 0002, ..."));
  add(integer("log.every", SLUICE_FIELD(log.every), 1, kMaxSteps, "steps between log lines"));
}

#undef SLUICE_FIELD

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> keys = [] {
    Keys all;
    add_model(all);
    add_data(all);
    add_train(all);
    add_optimizer(all);
    add_memory(all);
    all.push_back(recompute_policy());
    add_parallel(all);
    add_run(all);
    return all;
  }();
  return keys;
}

const ConfigKey* find_config_key(std::string_view path) {
  for (const ConfigKey& key : config_schema()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace sluice::config
