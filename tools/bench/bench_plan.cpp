// Planning runs on one thread and waits for nothing, so its cost is the CPU time of the process.
#include "tools/bench/bench_plan.hpp"

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {
namespace {

using config::Config;
using nlohmann::json;

// A server with one GPU: 32 cores, 100 TFLOP/s, a link of 24 GB/s, one NVMe drive. Not measured.
planner::HardwareProfile machine() {
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

struct Case {
  std::string name;
  Config config;
};

std::vector<Case> cases() {
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

Config random_shape(std::uint64_t seed) {
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

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What planning the configuration took and gave.
json planned(const Config& config, const planner::HardwareProfile& hardware) {
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config));
  const double begin_s = cpu_seconds();
  const auto result = planner::make_plan(config, model, *kernels, hardware);
  json figures{{"cpu_s", cpu_seconds() - begin_s}};
  const auto* plan = std::get_if<planner::Plan>(&result);
  figures["outcome"] = plan == nullptr ? "refused" : "fits";
  if (plan == nullptr) return figures;
  const double step_s = plan->simulation.total_s;
  const auto tokens = config.train.seq * config.train.micro_batch * config.train.accumulate;
  figures["step_s"] = step_s;
  figures["bound_s"] = plan->bound_s;
  figures["tokens_per_s"] = static_cast<double>(tokens) / step_s;
  return figures;
}

json random_shapes(int count, const planner::HardwareProfile& hardware) {
  std::vector<double> seconds;
  std::vector<double> gaps;
  for (int shape = 0; shape < count; ++shape) {
    const json figures = planned(random_shape(static_cast<std::uint64_t>(shape)), hardware);
    seconds.push_back(figures["cpu_s"].get<double>());
    if (figures["outcome"] != "fits") continue;
    gaps.push_back(figures["step_s"].get<double>() / figures["bound_s"].get<double>() - 1);
  }
  json figures{{"count", count}, {"fits", gaps.size()}};
  figures["median_cpu_s"] = median(seconds);
  figures["worst_cpu_s"] = *std::max_element(seconds.begin(), seconds.end());
  if (!gaps.empty()) figures["median_gap"] = median(gaps);
  return figures;
}

}  // namespace

json run_plan_bench(const PlanBenchOptions& options) {
  if (options.shapes < 0) throw InputError("bench: --shapes must not be negative");
  const planner::HardwareProfile hardware = machine();
  json list = json::array();
  for (const Case& known : cases()) {
    json figures = planned(known.config, hardware);
    figures["case"] = known.name;
    list.push_back(std::move(figures));
  }
  json figures{{"cases", std::move(list)}};
  if (options.shapes > 0) figures["shapes"] = random_shapes(options.shapes, hardware);
  return {{"event", "bench"}, {"name", "plan"}, {"figures", std::move(figures)}};
}

}  // namespace sluice::bench
