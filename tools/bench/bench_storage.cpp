#include "tools/bench/bench_storage.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/bench/fio.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/own_directory.hpp"
#include "tools/bench/storage_rates.hpp"
#include "tools/bench/storage_samples.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxRingBytes = 64 * kMiB;
constexpr std::uint64_t kMinFileBytes = 16 * kMiB;
constexpr int kSweepPasses = 3;

struct NamedMix {
  StorageMix mix;
  const char* name;
};
constexpr std::array<NamedMix, 3> kMixes{
    {{StorageMix::kRead, "read"}, {StorageMix::kWrite, "write"}, {StorageMix::kDuplex, "duplex"}}};

void check(const StorageBenchOptions& options) {
  const bool block_ok = options.block_bytes >= 4096 && options.block_bytes % 4096 == 0;
  if (!block_ok) throw InputError("bench storage: the block must be a multiple of 4096 bytes");
  if (options.depth < 2 || options.block_bytes > kMaxRingBytes / options.depth) {
    throw InputError(
        "bench storage: depth must be at least 2, and depth times block at most 64MiB");
  }
  if (options.bytes < kMinFileBytes ||
      options.bytes / 2 < options.block_bytes * std::uint64_t{options.depth}) {
    throw InputError("bench storage: the size must be at least 16MiB, and twice depth times block");
  }
  if (!(options.seconds > 0 && options.seconds <= 3600)) {
    throw InputError("bench storage: the time must be above 0 s and at most 3600 s");
  }
  if (options.rounds < 1 || options.rounds > 1000) {
    throw InputError("bench storage: there must be 1 to 1000 rounds");
  }
}

// One file; our engine and fio take turns on it.
class Trial {
 public:
  explicit Trial(const StorageBenchOptions& options)
      : options_(options),
        directory_(options.directory),
        ring_(options.block_bytes * options.depth) {
    offload::StorageOptions engine_options;
    engine_options.queue_depth = options.depth;
    engine_options.write_depth = options.depth;
    engine_options.queue_bytes = options.block_bytes * options.depth;
    engine_options.request_bytes = std::max(engine_options.request_bytes, options.block_bytes);
    engine_ = offload::make_storage_engine(options.engine, engine_options);
    engine_->register_memory(ring_.data(), ring_.bytes());
    load_.file_bytes = options.bytes / options.block_bytes * options.block_bytes;
    load_.block_bytes = options.block_bytes;
    load_.depth = options.depth;
    load_.file =
        engine_->open(directory_.file("data"), offload::StorageFileMode::kCreate, load_.file_bytes);
    std::uint64_t most_bytes = fio_buffer_bytes(options.block_bytes, options.depth);
    for (const FioSetting& setting : fio_sweep_settings()) {
      most_bytes = std::max(most_bytes, fio_buffer_bytes(setting.block_bytes, setting.depth));
    }
    fio_has_huge_pages_ = huge_pages_free(most_bytes);
  }

  // Turns all preallocated extents into written ones. Training does not do that in its steady
  // state, so the rate is reported apart.
  StorageRate write_first() {
    StorageLoad load = load_;
    load.bytes = load.file_bytes;
    load.seconds = kDefaultDeadlineSeconds;
    return measure_storage(*engine_, load, StorageMix::kWrite, ring_.data());
  }

  StorageRate ours(StorageMix mix) {
    StorageLoad load = load_;
    load.bytes = std::uint64_t{1} << 60;  // the time decides
    load.seconds = options_.seconds;
    return measure_storage(*engine_, load, mix, ring_.data());
  }

  // Returns nothing if fio is missing or cannot run here; why_not() says which.
  std::optional<StorageRate> fio(StorageMix mix, const FioSetting& setting) {
    FioLoad load;
    load.file = directory_.file("data");
    load.scratch = directory_.file("fio.json");
    load.bytes = load_.file_bytes;
    load.block_bytes = setting.block_bytes;
    load.depth = setting.depth;
    load.seconds = options_.seconds;
    load.huge_pages = fio_has_huge_pages_;
    try {
      auto rate = run_fio(load, mix);
      if (!rate) why_not_ = "not installed";
      return rate;
    } catch (const Error& error) {
      why_not_ = std::string("failed: ") + error.what();
      return std::nullopt;
    }
  }

  FioSetting same_setting() const { return {options_.block_bytes, options_.depth}; }
  const std::string& why_not() const { return why_not_; }
  bool fio_has_huge_pages() const { return fio_has_huge_pages_; }
  const StagingRing& ring() const { return ring_; }
  json facts() const {
    return {{"engine", engine_->name()},
            {"block_bytes", options_.block_bytes},
            {"depth", options_.depth},
            {"rounds", options_.rounds},
            {"file_bytes", load_.file_bytes},
            {"ring_bytes", ring_.bytes()},
            {"ring_huge_bytes", ring_.huge_bytes()}};
  }

 private:
  const StorageBenchOptions options_;
  const OwnDirectory directory_;
  const StagingRing ring_;
  std::unique_ptr<offload::StorageEngine> engine_;
  StorageLoad load_;
  bool fio_has_huge_pages_ = false;
  std::string why_not_;
};

// Finds the fastest of fio's settings, ours among them. Returns nothing if fio cannot run.
std::optional<FioSetting> find_best(Trial& trial, const NamedMix& mix, json& figures) {
  bool ran = true;
  std::vector<FioSetting> settings = fio_sweep_settings();
  const bool ours =
      std::find(settings.begin(), settings.end(), trial.same_setting()) != settings.end();
  if (!ours) settings.push_back(trial.same_setting());
  const auto swept = sweep_fio(settings, kSweepPasses, [&](const FioSetting& setting) {
    const auto rate = ran ? trial.fio(mix.mix, setting) : std::nullopt;
    ran = rate.has_value();
    return rate.value_or(StorageRate{});
  });
  if (!ran) return std::nullopt;
  for (const SweptSetting& one : swept) {
    json entry{{"mix", mix.name},
               {"block_bytes", one.setting.block_bytes},
               {"depth", one.setting.depth},
               {"gib_per_s", one.rate.bytes_per_s() / static_cast<double>(kGiB)},
               {"cpu_ms_per_gib", one.rate.cpu_s_per_byte() * static_cast<double>(kGiB) * 1e3}};
    figures["fio_sweep"].push_back(std::move(entry));
  }
  return fastest(swept).setting;
}

// Saves NAME, the median over the rounds, and NAME_interval.
void save_ratio(const std::string& name, const std::vector<double>& ratios, json& figures) {
  figures[name] = median(ratios);
  const auto interval = interval_of_median(ratios);
  figures[name + "_interval"] = interval ? json{interval->low, interval->high} : json(nullptr);
}

void save_comparison(const std::string& mix, const StorageSamples& ours, const StorageSamples& fio,
                     json& figures) {
  fio.save("fio_" + mix, figures);
  save_ratio("ratio_" + mix, ours.ratios(fio), figures);
  save_ratio("cpu_ratio_" + mix, ours.cpu_ratios(fio), figures);
}

void save_best(const std::string& mix, const FioSetting& setting, const StorageSamples& ours,
               const StorageSamples& best, json& figures) {
  best.save("best_fio_" + mix, figures);
  figures["best_fio_" + mix + "_block_bytes"] = setting.block_bytes;
  figures["best_fio_" + mix + "_depth"] = setting.depth;
  save_ratio("default_of_best_" + mix, ours.ratios(best), figures);
}

// Measures our engine, fio, and fio at its best setting in turn, backwards in every other round, so
// that drift affects all alike.
void measure_mix(Trial& trial, const StorageBenchOptions& options, const NamedMix& mix,
                 json& figures) {
  std::optional<FioSetting> best;
  if (options.sweep) best = find_best(trial, mix, figures);
  const bool best_apart = best && *best != trial.same_setting();
  StorageSamples ours;
  StorageSamples fio;
  StorageSamples best_fio;
  const auto measure_fio = [&](const FioSetting& setting, StorageSamples& samples) {
    if (!trial.why_not().empty()) return;
    if (const auto rate = trial.fio(mix.mix, setting)) samples.add(*rate);
  };
  for (int round = 0; round < options.rounds; ++round) {
    const bool forwards = round % 2 == 0;
    if (forwards) ours.add(trial.ours(mix.mix));
    if (forwards || !best_apart) measure_fio(trial.same_setting(), fio);
    if (best_apart) measure_fio(*best, best_fio);
    if (!forwards && best_apart) measure_fio(trial.same_setting(), fio);
    if (!forwards) ours.add(trial.ours(mix.mix));
  }
  const std::string name = mix.name;
  ours.save(name, figures);
  if (!trial.why_not().empty()) return;
  save_comparison(name, ours, fio, figures);
  if (!best) return;
  // The sweep's measurements are short: the rounds decide which setting is faster.
  const bool apart = best_apart && best_fio.bytes_per_s() > fio.bytes_per_s();
  save_best(name, apart ? *best : trial.same_setting(), ours, apart ? best_fio : fio, figures);
}

// Measures the cost of tagging all data that moves: a core's time as a share of the transfer's.
void measure_tag_cost(const StagingRing& ring, double seconds, json& figures) {
  const double fp32 = measure_tags(ring, kLawBlockElems * 4, seconds / 2);
  figures["tag_bf16_gib_per_s"] =
      measure_tags(ring, kLawBlockElems * 2, seconds / 2) / static_cast<double>(kGiB);
  figures["tag_fp32_gib_per_s"] = fp32 / static_cast<double>(kGiB);
  for (const NamedMix& mix : kMixes) {
    const std::string name = mix.name;
    figures["tag_share_" + name] =
        figures[name + "_gib_per_s"].get<double>() / (fp32 / static_cast<double>(kGiB));
  }
}

}  // namespace

json run_storage_bench(const StorageBenchOptions& options) {
  check(options);
  Trial trial(options);
  json figures = trial.facts();
  StorageSamples first;
  first.add(trial.write_first());
  first.save("first_write", figures);
  for (const NamedMix& mix : kMixes) measure_mix(trial, options, mix, figures);
  if (trial.why_not().empty()) {
    figures["fio_depth"] = fio_depth(options.depth);
    figures["fio_memory"] = trial.fio_has_huge_pages() ? "huge pages" : "small pages";
  } else {
    figures["fio"] = trial.why_not();
  }
  measure_tag_cost(trial.ring(), std::min(options.seconds, 1.0), figures);
  return {{"event", "bench"}, {"name", "storage"}, {"figures", figures}};
}

}  // namespace sluice::bench
