// Data-parallel ranks divide the micro-batches of a step evenly, and each rank adds whole subtrees
// of the groups' tree (docs/design/ranks.md). Tensor-parallel ranks divide heads and columns evenly
// (docs/design/tensor.md).
#include <bit>
#include <numeric>

#include "engine/config/config.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::config {
namespace {

// The largest number of groups up to `groups`, or else the least, that divides the micro-batches
// and of which each rank adds a power of two.
std::int64_t foldable_groups(std::int64_t groups, std::int64_t ranks, std::int64_t accumulate) {
  if (accumulate % ranks != 0) return 1;
  std::int64_t next = ranks;
  while (next * 2 <= groups && accumulate % (next * 2) == 0) next *= 2;
  return next;
}

// A place that nothing takes would be taken for a setting that works.
std::optional<RanksProblem> partial_problem(const Config& config) {
  if (config.memory.place.partial == Config::Place::kAuto) return std::nullopt;
  std::string why;
  const bool ring = config.parallel.reduction == Config::GradientSum::kRing;
  if (config.train.fold_groups == 1 && !ring) {
    why =
        "train.fold_groups = 1, where ranks exchange each micro-batch and memory.place.gradient "
        "places the sums";
  } else if (config.train.accumulate == config.parallel.data) {
    why = "one micro-batch for each rank, which has no sum to keep";
  } else {
    return std::nullopt;
  }
  return RanksProblem{"memory.place.partial",
                      "memory.place.partial has no meaning with " + why + "; leave it out"};
}

// A server that makes several updates in one schedule.
std::optional<RanksProblem> server_problem(const Config& config) {
  const auto& parallel = config.parallel;
  using Mode = Config::ServerMode;
  if (parallel.server_mode == Mode::kBsp) return std::nullopt;
  const bool rotates = parallel.server_mode == Mode::kRotating;
  const std::string mode =
      std::string("parallel.server_mode = ") + (rotates ? "\"rotating\"" : "\"asp\"");
  const std::string ranks = "parallel.data = " + std::to_string(parallel.data);
  if (!parallel.server || parallel.data == 1) {
    return RanksProblem{"parallel.server_mode",
                        mode + " needs parallel.server = true and parallel.data of at least 2"};
  }
  if (!rotates && config.train.accumulate != 1) {
    return RanksProblem{"train.accumulate",
                        mode + " needs train.accumulate = 1: each micro-batch is an update"};
  }
  if (rotates && parallel.updates % parallel.data != 0) {
    return RanksProblem{
        "parallel.updates",
        mode + " needs parallel.updates to be a multiple of " + ranks +
            ", so that each rank serves and the first one has the state in the end"};
  }
  if (!rotates && parallel.updates < parallel.data) {
    return RanksProblem{"parallel.updates", mode + " needs parallel.updates of at least " + ranks +
                                                ", so that a gradient of each rank arrives"};
  }
  return std::nullopt;
}

// The ring and the server are ways of plain data parallelism.
std::optional<RanksProblem> plain_problem(const Config& config) {
  const auto& parallel = config.parallel;
  const bool ring = parallel.reduction == Config::GradientSum::kRing;
  const std::string stage = "parallel.zero = " + std::to_string(parallel.zero);
  if (parallel.server && parallel.zero > 0) {
    return RanksProblem{"parallel.server",
                        "parallel.server = true needs parallel.zero = 0: with " + stage +
                            " each rank keeps a shard of the optimizer's state, with a server rank "
                            "0 keeps all of it"};
  }
  if (ring && (parallel.zero > 0 || parallel.server)) {
    return RanksProblem{"parallel.reduction",
                        "parallel.reduction = \"ring\" needs parallel.zero = 0 and no "
                        "parallel.server: the ring gives every rank the whole sum; use \"tree\""};
  }
  if (ring && config.train.fold_groups > 1) {
    return RanksProblem{"train.fold_groups",
                        "train.fold_groups must be 1 with parallel.reduction = \"ring\", which "
                        "sums the micro-batches of each rank and then around the ring"};
  }
  return std::nullopt;
}

// A node's groups must be a whole subtree of the groups' tree.
std::optional<RanksProblem> node_problem(const Config& config) {
  const std::int64_t node_ranks = config.parallel.node_ranks;
  if (node_ranks < 2) return std::nullopt;
  const std::string start = "parallel.node_ranks is " + std::to_string(node_ranks) + ", and ";
  if (!std::has_single_bit(static_cast<std::uint64_t>(node_ranks)) ||
      config.parallel.data % node_ranks != 0) {
    return RanksProblem{"parallel.node_ranks",
                        start + "must be 2, 4, 8, ... and divide parallel.data = " +
                            std::to_string(config.parallel.data) +
                            ", or the sums would round differently"};
  }
  if (config.train.fold_groups > 1 && config.parallel.reduction == Config::GradientSum::kTree) {
    return std::nullopt;
  }
  return RanksProblem{"parallel.node_ranks",
                      start +
                          "nodes can only sum before others with train.fold_groups above 1 and "
                          "parallel.reduction = \"tree\"; leave it out"};
}

// The lists of these ways to sum know no stages.
std::optional<RanksProblem> pipeline_problem(const Config& config) {
  const auto& parallel = config.parallel;
  if (parallel.pipeline == 1) return std::nullopt;
  const std::string stages =
      ", which does not go with parallel.pipeline = " + std::to_string(parallel.pipeline);
  if (parallel.server) {
    return RanksProblem{"parallel.server", "parallel.server is true" + stages + "; leave it out"};
  }
  if (parallel.reduction == Config::GradientSum::kRing) {
    return RanksProblem{"parallel.reduction",
                        "parallel.reduction is \"ring\"" + stages + "; use \"tree\""};
  }
  if (parallel.node_ranks > 1) {
    return RanksProblem{"parallel.node_ranks", "parallel.node_ranks is " +
                                                   std::to_string(parallel.node_ranks) + stages +
                                                   "; leave it out"};
  }
  return std::nullopt;
}

std::string tensor_text(const Config& config) {
  return "parallel.tensor = " + std::to_string(config.parallel.tensor);
}

// Refuses counts that ranks cannot have equal parts of.
std::optional<RanksProblem> tensor_share_problem(const Config& config) {
  const std::int64_t ranks = config.parallel.tensor;
  const auto refuse = [&](const char* key, std::int64_t value, const std::string& rest) {
    return RanksProblem{"parallel.tensor", tensor_text(config) + " must divide " + key + " = " +
                                               std::to_string(value) + rest};
  };
  if (config.model.heads % ranks != 0) {
    return refuse("model.heads", config.model.heads, ": each rank has whole heads");
  }
  if (config.model.kv_heads % ranks != 0 && ranks % config.model.kv_heads != 0) {
    return refuse("model.kv_heads", config.model.kv_heads,
                  " or be a multiple of it: a key/value head is whole or copied");
  }
  if (config.model.ffn % ranks != 0) {
    return refuse("model.ffn", config.model.ffn, ": each rank has as many columns of the MLP");
  }
  if (config.parallel.sequence && config.train.seq % ranks != 0) {
    return refuse("train.seq", config.train.seq, ": each rank has its part of the rows");
  }
  if (config.model.vocab < ranks) {
    return RanksProblem{"parallel.tensor", tensor_text(config) +
                                               " needs a token for each rank, and "
                                               "model.vocab is " +
                                               std::to_string(config.model.vocab)};
  }
  return std::nullopt;
}

// The lists of these ways to sum and to update know no parts of tensors or sequences.
std::optional<RanksProblem> sum_problem(const Config& config, const std::string& ranks) {
  const auto& parallel = config.parallel;
  const std::string with = ", which does not go with " + ranks + " in this version";
  if (parallel.server) {
    return RanksProblem{"parallel.server", "parallel.server is true" + with};
  }
  if (parallel.reduction == Config::GradientSum::kRing) {
    return RanksProblem{"parallel.reduction", "parallel.reduction is \"ring\"" + with};
  }
  if (parallel.node_ranks > 1) {
    return RanksProblem{"parallel.node_ranks",
                        "parallel.node_ranks is " + std::to_string(parallel.node_ranks) + with};
  }
  if (parallel.delays_updates()) {
    return RanksProblem{"parallel.schedule", "parallel.schedule delays updates" + with};
  }
  return std::nullopt;
}

// Refuses counts that context-parallel ranks cannot divide, and settings that go with none yet.
std::optional<RanksProblem> context_problem(const Config& config) {
  const std::int64_t ranks = config.parallel.context;
  const bool ring = config.parallel.context_attention == Config::ContextAttention::kRing;
  if (ranks == 1) return std::nullopt;
  const std::string text = "parallel.context = " + std::to_string(ranks);
  const std::int64_t tensor = config.parallel.tensor;
  // A rank of a ring has two chunks, and with parallel.sequence an even part of each context rank's
  // rows.
  const std::int64_t rows = ranks * (config.parallel.sequence ? tensor : 1);
  const std::int64_t parts = ring ? std::lcm(2 * ranks, rows) : rows;
  if (config.train.seq % parts != 0) {
    const std::string groups =
        config.parallel.sequence ? ", " + tensor_text(config) + " and parallel.sequence" : "";
    return RanksProblem{"parallel.context",
                        "train.seq = " + std::to_string(config.train.seq) +
                            " must be a multiple of " + std::to_string(parts) + " with " + text +
                            groups +
                            (ring ? ": context ranks have two chunks of each sequence"
                                  : ": context ranks have even parts of each sequence")};
  }
  for (const auto& [key, heads] : {std::pair("model.heads", config.model.heads),
                                   std::pair("model.kv_heads", config.model.kv_heads)}) {
    if (ring || heads % (tensor * ranks) == 0) continue;
    return RanksProblem{
        "parallel.context",
        (tensor == 1 ? text
                     : "parallel.tensor * parallel.context = " + std::to_string(tensor * ranks)) +
            " must divide " + key + " = " + std::to_string(heads) +
            "; parallel.context_attention = \"ring\" has no such bound"};
  }
  if (config.train.micro_batch != 1) {
    return RanksProblem{"train.micro_batch", "train.micro_batch must be 1 with " + text +
                                                 ", whose ranks have parts of one sequence each"};
  }
  return sum_problem(config, text);
}

// Refuses settings that go with no tensor-parallel ranks yet.
std::optional<RanksProblem> tensor_problem(const Config& config) {
  if (config.parallel.tensor == 1) {
    if (!config.parallel.sequence) return std::nullopt;
    return RanksProblem{"parallel.sequence",
                        "parallel.sequence is true, which needs parallel.tensor above 1"};
  }
  if (auto problem = tensor_share_problem(config)) return problem;
  const auto refuse = [&](const std::string& key, const std::string& value) {
    return RanksProblem{
        key, key + " = " + value + " does not go with " + tensor_text(config) + " in this version"};
  };
  if (auto problem = sum_problem(config, tensor_text(config))) return problem;
  kernels::OptimizerOptions rule;
  rule.rule = config.optimizer.name;
  if (kernels::needs_whole_tensors(rule)) {
    return refuse("optimizer.name",
                  "\"" + std::string(kernels::optimizer_rule_name(config.optimizer.name)) + "\"");
  }
  if (config.optimizer.moments == Config::Moments::k8Bit) {
    return RanksProblem{"optimizer.moments",
                        "optimizer.moments = \"8bit\" does not go with " + tensor_text(config) +
                            ": blocks of 128 moments share a scale, and ranks have parts of a "
                            "block; use \"bf16\" or \"fp32\""};
  }
  return std::nullopt;
}

}  // namespace

std::optional<RanksProblem> ranks_problem(const Config& config) {
  if (auto problem = tensor_problem(config)) return problem;
  if (auto problem = context_problem(config)) return problem;
  if (auto problem = pipeline_problem(config)) return problem;
  if (auto problem = server_problem(config)) return problem;
  const std::int64_t ranks = config.parallel.data;
  if (ranks == 1) return std::nullopt;
  const std::string ranks_text = "parallel.data = " + std::to_string(ranks);
  if (auto problem = plain_problem(config)) return problem;
  const std::int64_t accumulate = config.train.accumulate;
  const std::int64_t groups = config.train.fold_groups;
  if (!schedule::can_fold(groups, ranks)) {
    return RanksProblem{"train.fold_groups",
                        "train.fold_groups is " + std::to_string(groups) + ", and with " +
                            ranks_text +
                            " it must be 1 or give each rank a power of two of groups, such as " +
                            std::to_string(foldable_groups(groups, ranks, accumulate))};
  }
  const bool one_each = config.parallel.server_mode == Config::ServerMode::kAsp;
  if (accumulate != Config::kAutoCount && accumulate % ranks != 0 && !one_each) {
    const std::int64_t step = std::lcm(ranks, groups);
    return RanksProblem{"train.accumulate",
                        "train.accumulate is " + std::to_string(accumulate) +
                            ", the micro-batches of a step over all ranks, and must be a multiple "
                            "of " +
                            ranks_text + ", such as " +
                            std::to_string((accumulate / step + 1) * step)};
  }
  if (auto problem = node_problem(config)) return problem;
  return partial_problem(config);
}

}  // namespace sluice::config
