#include "tools/bench/plan_cases.hpp"

#include "base/rng.hpp"
#include "base/units.hpp"

namespace sluice::bench {
namespace {

using config::Config;

struct Budgets {
  std::uint64_t device = 0, pinned = 0;
};

Config sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
             std::int64_t microbatches, Budgets budgets) {
  Config config;
  config.model.family = Config::Family::kGpt2;
  config.model.layers = layers;
  config.model.hidden = hidden;
  config.model.heads = config.model.kv_heads = heads;
  config.model.ffn = 4 * hidden;
  config.model.vocab = 50257;
  config.model.max_seq = config.train.seq = 1024;
  config.train.micro_batch = 1;
  config.train.accumulate = microbatches;
  config.train.threads = 32;
  config.train.clip = 1.0;
  config.optimizer.states = Config::States::kSplit;
  config.memory.backend = Config::Backend::kHost;
  config.memory.device_bytes = budgets.device;
  config.memory.pinned_bytes = budgets.pinned;
  config.memory.storage_bytes = 16384 * kGiB;
  return config;
}

Config llama(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
             std::int64_t kv_heads, Budgets budgets) {
  Config config = sized(layers, hidden, heads, 1, budgets);
  config.model.family = Config::Family::kLlama;
  config.model.kv_heads = kv_heads;
  config.model.ffn = ffn;
  config.model.vocab = 32000;
  config.model.tie_embeddings = false;
  config.model.max_seq = config.train.seq = 4096;
  return config;
}

}  // namespace

planner::HardwareProfile plan_machine() {
  planner::HardwareProfile profile;
  profile.cpu_name = "bench plan";
  profile.cores = 32;
  profile.memory_bandwidth_bytes_per_s = 1.5e11;
  profile.single_core_copy_bytes_per_s = 2.4e10;
  profile.storage_read_bytes_per_s = 6e9;
  profile.storage_write_bytes_per_s = 5e9;
  profile.storage_duplex_bytes_per_s = 6e9;
  profile.storage_latency_s = 1e-4;
  profile.storage_overlap = 0.5;
  profile.gemm_f32_flops_per_s = 5e13;
  profile.gemm_bf16_flops_per_s = 1e14;
  profile.adam_params_per_s = 3e9;
  return profile;
}

std::vector<PlanCase> plan_cases() {
  const auto gib = [](double device, double pinned) {
    const auto bytes = [](double of) {
      return static_cast<std::uint64_t>(of * static_cast<double>(kGiB));
    };
    return Budgets{bytes(device), bytes(pinned)};
  };
  return {
      {"7 B, 22/56 GiB", llama(32, 4096, 11008, 32, 32, gib(22, 56))},
      {"1.56 B x 16, 16/32 GiB", sized(48, 1600, 25, 16, gib(16, 32))},
      {"1.56 B x 16, 6/12 GiB", sized(48, 1600, 25, 16, gib(6, 12))},
      {"1.56 B x 16, 3/4 GiB", sized(48, 1600, 25, 16, gib(3, 4))},
      {"1.56 B x 16, 100 MiB/4 GiB", sized(48, 1600, 25, 16, {100 * kMiB, 4 * kGiB})},
      {"70 B, 70/400 GiB", llama(80, 8192, 28672, 64, 8, gib(70, 400))},
      {"7.8 B x 128, 100 units, 22/56 GiB", sized(98, 2560, 20, 128, gib(22, 56))},
  };
}

Config random_plan_shape(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("bench/plan"));
  std::uint64_t drawn = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(drawn++, bound); };
  const auto layers = static_cast<std::int64_t>(1 + below(98));
  const std::int64_t heads = std::int64_t{1} << (1 + below(5));
  const std::int64_t hidden = 64 * heads;
  const std::int64_t microbatches = std::int64_t{1} << below(8);
  const Budgets budgets{(64 * kMiB) << below(10), (256 * kMiB) << below(9)};
  return sized(layers, hidden, heads, microbatches, budgets);
}

// Budgets are shares of the bytes that the model would take on the device alone, so that all
// kinds of plans and refusals are common.
Config random_small_model(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("bench/plan/small"));
  std::uint64_t drawn = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(drawn++, bound); };
  const auto layers = static_cast<std::int64_t>(1 + below(3));
  const std::int64_t heads = std::int64_t{1} << (1 + below(3));
  const std::int64_t hidden = 64 * heads;
  Config config = sized(layers, hidden, heads, static_cast<std::int64_t>(1 + below(4)), {});
  config.model.vocab = std::int64_t{256} << below(5);
  config.model.max_seq = config.train.seq = std::int64_t{64} << below(4);
  config.train.micro_batch = std::int64_t{1} << below(3);
  config.train.clip = below(2) == 0 ? 0.0 : 1.0;
  const auto parameters =
      static_cast<std::uint64_t>(layers * 12 * hidden * hidden + config.model.vocab * hidden);
  const auto tokens = static_cast<std::uint64_t>(config.train.seq * config.train.micro_batch);
  constexpr std::uint64_t kStateBytes = 18;
  constexpr std::uint64_t kActivationBytes = 34;  // of a layer, for each token and hidden element
  const std::uint64_t all = kStateBytes * parameters + kActivationBytes * tokens *
                                                           static_cast<std::uint64_t>(hidden) *
                                                           static_cast<std::uint64_t>(layers);
  const auto share = [&] { return all / 20 * (1 + below(20)) + 4 * kMiB; };
  config.memory.device_bytes = share();
  config.memory.pinned_bytes = share();
  if (below(4) == 0) config.memory.storage_bytes = share();
  return config;
}

}  // namespace sluice::bench
