// All plans are for the profile dgx-a100 with its efficiencies as they are. Table 1 states the
// model, the mesh and the batch of each row; the vocabulary of 51,200 tokens and the sequences of
// 2,048 are the paper's for all. Taken for all rows, since the table does not state them:
// micro-batches of one sequence, and 1F1B without interleaving. The paper recomputes every layer,
// sums gradients once a step and does not shard the optimizer's state.
#include "tools/bench/plan_worlds.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "engine/train/plan/mesh_search.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr std::int64_t kSeq = 2048;
constexpr std::int64_t kVocab = 51'200;

struct Row {
  double billions;
  std::int64_t heads, hidden, layers, tensor, pipeline, ranks, batch;
  double published_tflops;  // of one GPU
};
constexpr std::array<Row, 10> kRows{{{1.7, 24, 2304, 24, 1, 1, 32, 512, 137},
                                     {3.6, 32, 3072, 30, 2, 1, 64, 512, 138},
                                     {7.5, 32, 4096, 36, 4, 1, 128, 512, 142},
                                     {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135},
                                     {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138},
                                     {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140},
                                     {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148},
                                     {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155},
                                     {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163},
                                     {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163}}};

std::string setting(const char* key, std::int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

config::Config config_of(const Row& row, const std::vector<std::string>& more = {}) {
  const std::int64_t data = row.ranks / row.tensor / row.pipeline;
  std::vector<std::string> settings{"model.family=gpt2",
                                    setting("model.layers", row.layers),
                                    setting("model.hidden", row.hidden),
                                    setting("model.heads", row.heads),
                                    setting("model.vocab", kVocab),
                                    setting("train.seq", kSeq),
                                    "train.micro_batch=1",
                                    "train.precision=bf16",
                                    "optimizer.states=split",
                                    setting("train.accumulate", row.batch),
                                    setting("train.fold_groups", data),
                                    "recompute.policy=unit",
                                    "memory.place.partial=device",
                                    setting("parallel.data", data),
                                    setting("parallel.tensor", row.tensor),
                                    setting("parallel.pipeline", row.pipeline),
                                    "parallel.schedule=1f1b"};
  settings.insert(settings.end(), more.begin(), more.end());
  return config::parse_config("", "bench", settings);
}

// Operations of a step as the paper counts them, with those of recomputation: its equation (3).
double published_flops(const Row& row) {
  const auto hidden = static_cast<double>(row.hidden), layers = static_cast<double>(row.layers);
  const auto seq = static_cast<double>(kSeq), vocab = static_cast<double>(kVocab);
  return 96 * static_cast<double>(row.batch) * seq * layers * hidden * hidden *
         (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden));
}

class Stopwatch {
 public:
  // Adds the time since it was made, and the process's peak.
  void add_to(json& figures) const {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin_;
    figures["wall_s"] = wall.count();
    figures["cpu_s"] = process_cpu_seconds() - begin_cpu_s_;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    figures["peak_bytes"] = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double begin_cpu_s_ = process_cpu_seconds();
};

json planned(const config::Config& config, const planner::HardwareProfile& hardware) {
  const Stopwatch watch;
  train::Prepared prepared = train::prepare_described(config, hardware);
  json figures;
  watch.add_to(figures);
  const planner::Plan* plan = prepared.plan();
  figures["fits"] = plan != nullptr;
  if (plan == nullptr) {
    figures["why"] = prepared.refusal()->sentence();
    return figures;
  }
  figures["step_s"] = plan->step_s();
  figures["classes"] = plan->ranks.size();
  figures["bound_by"] = plan->bound_by;
  return figures;
}

std::string seconds_text(const json& figures) {
  return format_seconds(figures["cpu_s"].get<double>()) + " of CPU time, " +
         format_seconds(figures["wall_s"].get<double>()) + " of the clock";
}

std::string row_text(const json& figures) {
  if (!figures["fits"].get<bool>()) return "no plan: " + figures["why"].get<std::string>();
  std::string text = "a step of " + format_seconds(figures["step_s"].get<double>());
  if (!figures.contains("tflops")) return text;
  std::array<char, 96> line{};
  std::snprintf(line.data(), line.size(), ", %.1f TFLOP/s, published %.0f, error %+.1f%%",
                figures["tflops"].get<double>(), figures["published_tflops"].get<double>(),
                100 * figures["error"].get<double>());
  return text + line.data();
}

// 1 T parameters, the last row's model.
json large(const planner::HardwareProfile& hardware, const WorldNotes& notes) {
  Row row = kRows.back();
  row.ranks = 10'000;
  row.pipeline = 25;
  row.batch = 3'200;
  notes.begin("10,000 ranks, 1 T parameters");
  json figures = planned(config_of(row, {"parallel.zero=1"}), hardware);
  figures["ranks"] = row.ranks;
  notes.done("10,000 ranks, 1 T parameters: " + row_text(figures) + ", " + seconds_text(figures));
  return figures;
}

json best_mesh(const planner::HardwareProfile& hardware, const WorldNotes& notes) {
  constexpr std::int64_t kRanks = 512;
  Row row = kRows[4];
  row.tensor = row.pipeline = row.ranks = 1;
  row.batch = 1'024;
  const config::Config config =
      config_of(row, {setting("train.fold_groups", kRanks), "recompute.policy=auto"});
  const Stopwatch watch;
  notes.begin("meshes of 512 ranks: bounds");
  const train::MeshChoice choice =
      train::choose_mesh(config, hardware, kRanks, train::MeshScope::kPossible,
                         [&](const train::TriedMesh& next, std::size_t precede, std::size_t of) {
                           notes.begin("meshes of 512 ranks: " + train::mesh_text(next.mesh) +
                                       ", bound " + format_seconds(next.bound_s) + ", number " +
                                       std::to_string(precede + 1) + " of " + std::to_string(of));
                         });
  json figures{{"ranks", kRanks}, {"meshes", train::meshes_json(choice.tried)}};
  watch.add_to(figures);
  if (!choice.best) throw InternalError("bench plan: no mesh of 512 ranks fits");
  figures["step_s"] = std::get<planner::Plan>(choice.best->result).step_s();
  const auto planned = std::count_if(choice.tried.begin(), choice.tried.end(),
                                     [](const train::TriedMesh& one) { return one.planned; });
  figures["planned"] = planned;
  notes.done("meshes of 512 ranks: " + row_text({{"fits", true}, {"step_s", figures["step_s"]}}) +
             ", planned " + std::to_string(planned) + " of " + std::to_string(choice.tried.size()) +
             ", " + seconds_text(figures));
  return figures;
}

// A row that this version cannot run has a reason in place of a step.
json planned_or_why(const Row& row, const planner::HardwareProfile& hardware) {
  try {
    return planned(config_of(row), hardware);
  } catch (const InputError& error) {
    return {{"fits", false}, {"why", error.what()}};
  }
}

json published(const planner::HardwareProfile& hardware, const WorldNotes& notes) {
  json list = json::array();
  for (const Row& row : kRows) {
    notes.begin(std::to_string(row.ranks) + " GPUs of table 1");
    json figures = planned_or_why(row, hardware);
    figures["billions"] = row.billions;
    figures["ranks"] = row.ranks;
    figures["published_tflops"] = row.published_tflops;
    if (figures["fits"].get<bool>()) {
      constexpr double kTera = 1e12;
      const double tflops = published_flops(row) / figures["step_s"].get<double>() /
                            static_cast<double>(row.ranks) / kTera;
      figures["tflops"] = tflops;
      figures["error"] = tflops / row.published_tflops - 1;
    }
    notes.done(std::to_string(row.ranks) + " GPUs of table 1: " + row_text(figures) +
               (figures.contains("cpu_s") ? ", " + seconds_text(figures) : ""));
    list.push_back(std::move(figures));
  }
  return list;
}

}  // namespace

json measure_world_plans(const WorldNotes& notes) {
  const planner::HardwareProfile hardware =
      planner::load_named_profile("dgx-a100", planner::bundled_profile_directory());
  const planner::HardwareProfile& gpu = hardware.gpu_or_default();
  const planner::RankLinks links = hardware.rank_links_or_default();
  json figures;
  figures["profile"] = {{"products_of_peak", gpu.gemm_bf16_flops_per_s / gpu.peak_bf16_flops_per_s},
                        {"memory_bytes_per_s", gpu.memory_bandwidth_bytes_per_s},
                        {"node_bytes_per_s", links.bytes_per_s},
                        {"network_bytes_per_s", links.network_bytes_per_s / links.node_ranks}};
  figures["large"] = large(hardware, notes);
  figures["published"] = published(hardware, notes);
  figures["meshes"] = best_mesh(hardware, notes);
  return figures;
}

}  // namespace sluice::bench
