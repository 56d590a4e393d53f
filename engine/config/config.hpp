// The configuration of a run: TOML file, `--set key=value` overrides, defaults, checks.
//
// One table (schema.cpp) names every key with its type, range, default and meaning; parsing,
// overrides, suggestions for unknown keys, `--help-config` and the dumps all read that table.
// A Config returned by load_config or parse_config is resolved: derived defaults (kv_heads, ffn,
// max_seq, directories …) are filled in and the values agree with each other.
// Errors: InputError, one sentence that names the file and line (or the override), the key, the
// given value and the right ones. Nothing here touches the file system but the reading of the
// file. Thread rule: everything is a pure function; a Config is a value.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_kinds.hpp"
#include "base/units.hpp"
#include "engine/config/data_format.hpp"
#include "engine/model/parameter_group.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::config {

// Tokens of a micro-batch: keeps products with ffn, layers and element size below 2^63.
inline constexpr std::int64_t kMostMicroBatchTokens = 1 << 22;

// Enumerators stand in the order of their spellings in the schema.
struct Config {
  enum class Family : std::uint8_t { kGpt2, kLlama };
  enum class Precision : std::uint8_t { kBF16, kFP32, kFP16 };
  enum class LossScaling : std::uint8_t { kDynamic, kStatic };
  enum class Reduction : std::uint8_t { kGrouped, kSequential };
  enum class LrSchedule : std::uint8_t { kCosine, kConstant };
  enum class States : std::uint8_t { kFP32, kSplit };
  enum class Moments : std::uint8_t { kFP32, kBF16, k8Bit };
  enum class OptimizerPlacement : std::uint8_t {
    kAuto,
    kAfterBackward,
    kInBackward,
    kNextForward,
    kSpeculative
  };
  enum class Backend : std::uint8_t { kAuto, kHost, kCuda };
  enum class StorageEngineKind : std::uint8_t { kAuto, kIoUring, kPosix };
  enum class Place : std::uint8_t { kAuto, kDevice, kPinned, kStorage };
  // The tier of each kind of bytes; kAuto leaves the choice to the planner.
  struct Places {
    Place weight = Place::kAuto, gradient = Place::kAuto, optimizer = Place::kAuto;
    Place activation = Place::kAuto;
    Place partial = Place::kAuto;  // sums of micro-batches that a rank has yet to exchange
    // Places of parts that units save, by name; "*": all parts not named.
    std::map<std::string, Place> saved;
  };
  enum class Recompute : std::uint8_t {
    kNone,
    kUnit,
    kSelective,
    kAttention,
    kEvery,
    kSqrt,
    kAuto
  };
  // As schedule::OrderKind; then as schedule::DelayRule; and an order from a file.
  enum class PipelineSchedule : std::uint8_t {
    kGPipe,
    k1F1B,
    kInterleaved,
    kZbH1,
    kZbH2,
    kZbV,
    kVertical,
    kPipeDream,
    kPipeDreamVsync,
    kTwoBw,
    kCsv
  };
  enum class GradientSum : std::uint8_t { kTree, kRing };
  enum class ServerMode : std::uint8_t { kBsp, kAsp, kRotating };
  enum class TensorMode : std::uint8_t { k1D, k2D, k25D, k3D };
  enum class ContextAttention : std::uint8_t { kAllToAll, kRing };
  enum class Transport : std::uint8_t { kAuto, kGloo, kNccl };
  enum class CheckpointMode : std::uint8_t { kScratch, kDurable };
  enum class Order : std::uint8_t { kAuto, kMicrobatch, kUnit };

  // A budget's source: the configuration; or, for "auto", this machine, the profile of a described
  // machine, or a number assumed because that profile does not state the tier's size.
  enum class BudgetOrigin : std::uint8_t { kGiven, kMachine, kProfile, kAssumed };

  // "auto": what the machine has (planner/default_budgets.hpp puts the number in its place). Larger
  // than every number a budget may be.
  static constexpr std::uint64_t kAutoBytes = std::numeric_limits<std::uint64_t>::max();
  // "auto" of train.micro_batch and train.accumulate: the planner divides train.batch into
  // micro-batches (planner/batch_split.hpp). A plan's configuration has the numbers.
  static constexpr std::int64_t kAutoCount = 0;

  struct {
    Family family = Family::kGpt2;
    std::int64_t layers = 0, hidden = 0, heads = 0;
    std::int64_t kv_heads = 0;  // derived: heads
    std::int64_t ffn = 0;       // derived: gpt2 4*hidden; llama 8/3*hidden, up to a multiple of 64
    std::int64_t vocab = 256;
    std::int64_t max_seq = 0;    // derived: train.seq
    bool tie_embeddings = true;  // derived: true for gpt2, false for llama
    std::string from;            // a Hugging Face directory; empty: a fresh model
  } model;

  struct {
    std::vector<std::string> paths;  // relative to the working directory
    DataFormat format = DataFormat::kBytes;
    double eval_fraction = 0.0;
  } data;

  struct {
    std::int64_t steps = 1000;
    std::int64_t seq = 256;        // tokens per sample
    std::int64_t batch = 0;        // samples per step; 0: the product of the next two
    std::int64_t micro_batch = 4;  // samples per micro-batch, or kAutoCount
    std::int64_t accumulate = 1;   // micro-batches per step; kAutoCount as micro_batch
    Order order = Order::kAuto;    // which passes of a step come first
    Precision precision = Precision::kBF16;
    // fp16 only.
    LossScaling loss_scaling = LossScaling::kDynamic;
    std::int64_t loss_scale = 65536;  // a power of two
    std::int64_t loss_scale_window = 2000;
    std::int64_t loss_scale_patience = 16;
    std::uint64_t seed = 1;
    double clip = 1.0;            // global gradient norm; 0: no clipping
    std::int64_t eval_every = 0;  // steps; 0: never
    Reduction reduction = Reduction::kGrouped;
    std::int64_t fold_groups = 1;
    std::int64_t threads = 0;  // compute threads; 0: one per logical processor
  } train;

  struct {
    kernels::OptimizerRule name = kernels::OptimizerRule::kAdamW;
    double lr = 3e-4;
    double beta1 = 0.9, beta2 = 0.95;  // derived: beta2 0.99 for lion
    double eps = 1e-8;
    double momentum = 0.9;  // derived: 0.95 for muon
    bool nesterov = false;
    double beta2_decay = -0.8;
    double clip_threshold = 1.0;
    double weight_decay = 0.1;
    std::vector<model::ParameterGroup> groups;
    std::int64_t warmup = 0;  // steps
    LrSchedule schedule = LrSchedule::kCosine;
    States states = States::kFP32;
    Moments moments = Moments::kFP32;
    OptimizerPlacement placement = OptimizerPlacement::kAuto;
    std::int64_t carried_units = -1;  // -1: chosen by the planner
  } optimizer;

  struct {
    Backend backend = Backend::kAuto;
    // Budgets: hard caps per tier.
    std::uint64_t device_bytes = kAutoBytes;
    std::uint64_t pinned_bytes = kAutoBytes;
    std::uint64_t storage_bytes = kAutoBytes;
    // No keys: where each budget comes from, for the words of a plan.
    std::array<BudgetOrigin, kTierCount> budget_origins{};
    std::vector<std::string> storage_paths;  // directories; derived: [log.dir + "/storage"]
    std::vector<double> storage_shares;      // of each path; empty: by measured speed
    StorageEngineKind storage_engine = StorageEngineKind::kAuto;
    bool storage_sqpoll = false;
    std::uint64_t chunk_bytes = kPageBytes;  // a multiple of kPageBytes
    std::int64_t prefetch = 2;               // units fetched ahead of their use
    std::uint64_t update_ring_bytes = kAutoBytes;
    Places place;
    // The host device's model of a link, each direction. 0: as fast as memory.
    double link_bandwidth_bytes_per_s = 0.0;
    double link_latency_s = 0.0;  // per copy
  } memory;

  struct {
    Recompute policy = Recompute::kAuto;
    std::int64_t every = 1;  // kEvery: units of a segment
  } recompute;

  struct {
    std::int64_t data = 1, tensor = 1, pipeline = 1, context = 1;
    bool sequence = false;  // the ranks of a tensor group also divide the rows
    std::int64_t zero = 0;  // ZeRO stage
    bool server = false;    // rank 0 keeps all optimizer state and updates for all
    ServerMode server_mode = ServerMode::kBsp;
    std::int64_t node_ranks = 0;  // that sum among themselves first; 0: none do
    GradientSum reduction = GradientSum::kTree;
    TensorMode tensor_mode = TensorMode::k1D;
    ContextAttention context_attention = ContextAttention::kAllToAll;
    std::uint64_t bucket_bytes =
        16 * kMiB;  // plain data parallelism: of fp32 sums that travel at once
    Transport transport = Transport::kAuto;
    PipelineSchedule schedule = PipelineSchedule::k1F1B;
    std::string schedule_file;        // kCsv
    std::int64_t virtual_stages = 0;  // stages of a pipeline rank; derived from the schedule
    std::int64_t updates = 1;         // of one schedule; derived from the schedule and train.steps

    // The ranks that compute each micro-batch together: a tensor group or a context group.
    std::int64_t inner_ranks() const { return tensor * context; }
    std::int64_t ranks() const { return data * pipeline * inner_ranks(); }
    // Whether a server makes several updates in one schedule.
    bool has_server_order() const { return server && data > 1 && server_mode != ServerMode::kBsp; }
    // Whether a schedule holds several updates: micro-batches may read weights that lack updates of
    // earlier ones.
    bool delays_updates() const {
      return has_server_order() || schedule == PipelineSchedule::kPipeDream ||
             schedule == PipelineSchedule::kPipeDreamVsync || schedule == PipelineSchedule::kTwoBw;
    }
  } parallel;

  struct {
    std::string dir;         // derived: log.dir + "/checkpoints"
    std::int64_t every = 0;  // steps; 0: only at the end and on a stop
    bool final = true;       // false: nothing is saved at the end
    CheckpointMode mode = CheckpointMode::kScratch;
  } checkpoint;

  struct {
    std::string dir = "runs/default";
    std::int64_t every = 1;  // steps
  } log;
};

// Reads `path` (at most 1 MiB), then applies `overrides` ("memory.device=64MiB") in order; the last
// one of a key wins.
Config load_config(const std::string& path, std::span<const std::string> overrides = {});
// Reads a text at hand; `name` stands for the file in messages.
Config parse_config(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides = {});

// The directory of checkpoints for a run that names none.
std::string default_checkpoint_dir(const std::string& log_dir);

// Refuses (InputError) values that are valid but that this version cannot run yet.
void check_supported(const Config& config);

// A setting that the ranks of parallel.* cannot run: its key, and a sentence that names what would
// be right. Loading refuses it; the planner asks again, since it may choose train.accumulate.
struct RanksProblem {
  std::string key;
  std::string sentence;
};
std::optional<RanksProblem> ranks_problem(const Config& config);

// The resolved configuration with every key; parse_config reads the TOML back to an equal Config.
// Derived values that do not determine the result stand in comments, so that they follow overrides.
std::string config_to_toml(const Config& config);
// Every key with its type, range, default and meaning, for people.
std::string config_help();

// This entry of result_settings() is not a key. It separates checkpoints in which a rule updated
// Llama's logical matrices from those of earlier versions, which updated q, k and v as one matrix.
inline constexpr std::string_view kMatricesSetting = "optimizer.matrices";

// The keys that determine a run's result, with their values as TOML: the same for two
// configurations exactly when one may resume the other's checkpoint, but for data.paths (data are
// known by their fingerprint) and train.steps (which may be raised). Left out: where memory is, how
// often things are logged, train.steps under the constant schedule (under cosine it shapes the
// learning rate), and the keys of loss scaling where none takes place.
std::map<std::string, std::string> result_settings(const Config& config);
// A durable commit has the parts of tensors that its ranks have, so its settings name the tensor
// and context groups, too.
inline constexpr std::array<const char*, 2> kGroupKeys{"parallel.tensor", "parallel.context"};
std::map<std::string, std::string> durable_settings(const Config& config);

}  // namespace sluice::config
