// The mark of a case is the best plan that was found in any way, not a bound. A plan for other
// budgets counts if it fits: the planner may miss it, and find it with more or less memory.
// Settings by hand are planned by the same planner, so their plans may miss something, too.
//
// Each case is drawn from numbers of its own. So threads plan cases in any order with the same
// results, and fewer cases are the first ones of more. Budgets are shares of the bytes of state and
// activations. The smallest ones have room for few units on the device, the largest ones for all.
#include "tools/bench/plan_held_out.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/mutex.hpp"
#include "base/rng.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr double kAsFast = 0.01;  // an excess up to it counts as none
constexpr int kMostAttempts = 64;
// One of so many settings is a pair: its search takes as long as that of `auto`, and longer than
// those of ten complete settings.
constexpr int kTurns = 6;
constexpr std::uint64_t kStorageBytes = 16384 * kGiB;  // ample for every case

// By name, so that a new profile leaves the cases of a seed as they are.
constexpr std::array kMachines{"rtx4090-64g-1nvme", "rtx4090-256g-12nvme", "rtx5090-192g-1nvme",
                               "h100-512g-4nvme",   "h200-128g-1nvme",     "dgx-a100",
                               "dgx-h100"};

std::string setting(const char* key, std::uint64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

struct DrawnModel {
  std::string words;
  Settings settings;
  double bytes = 0;  // of its state and activations
};

// The sizes keep most plans to two seconds: at most 32 layers, a width of 4,096, and 128 passes
// through layers.
DrawnModel draw_model(Draws& draws) {
  const bool llama = draws.chance(0.5);
  const std::uint64_t layers = draws.between(4, 32);
  const std::uint64_t hidden = 256 * draws.between(2, 16);
  const std::uint64_t heads = hidden / draws.one_of({64, 128});
  const std::uint64_t sharing = draws.one_of({1, 1, 2, 4, 8});
  const std::uint64_t kv_heads = heads % sharing == 0 ? heads / sharing : heads;
  const std::uint64_t ffn = hidden / 8 * draws.between(20, 36);
  const std::uint64_t vocab = draws.one_of({16'384, 32'000, 50'257, 65'536, 128'256});
  const std::uint64_t seq = std::uint64_t{512} << draws.below(4);
  const std::uint64_t micro_batch = std::uint64_t{1} << draws.below(3);
  constexpr std::uint64_t kMostPasses = 128;
  const std::uint64_t accumulate =
      std::min(std::uint64_t{1} << draws.below(5), std::bit_floor(kMostPasses / layers));

  DrawnModel model;
  model.settings = {llama ? "model.family=llama" : "model.family=gpt2",
                    setting("model.layers", layers),
                    setting("model.hidden", hidden),
                    setting("model.heads", heads),
                    setting("model.kv_heads", kv_heads),
                    setting("model.ffn", ffn),
                    setting("model.vocab", vocab),
                    setting("train.seq", seq),
                    setting("train.micro_batch", micro_batch),
                    setting("train.accumulate", accumulate)};
  model.words = std::string(llama ? "llama " : "gpt2 ") + std::to_string(layers) + " x " +
                std::to_string(hidden) + ", heads " + std::to_string(heads) + "/" +
                std::to_string(kv_heads) + ", ffn " + std::to_string(ffn) + ", vocab " +
                std::to_string(vocab) + ", batch " + std::to_string(accumulate) + " x " +
                std::to_string(micro_batch) + " x " + std::to_string(seq);
  const auto wide = static_cast<double>(hidden), deep = static_cast<double>(layers);
  const double products = (llama ? 3 : 2) * wide * static_cast<double>(ffn);
  const double shared = static_cast<double>(kv_heads) / static_cast<double>(heads);
  const double parameters =
      deep * (2 * wide * wide * (1 + shared) + products) + static_cast<double>(vocab) * wide;
  constexpr double kStateBytes = 16;       // of a parameter
  constexpr double kActivationBytes = 34;  // of a layer, for each token and hidden element
  model.bytes = kStateBytes * parameters +
                kActivationBytes * deep * wide * static_cast<double>(micro_batch * seq);
  return model;
}

// Adds the optimizer, the precision and clipping. Their combinations are those that a configuration
// may have: split states need bf16, and Adafactor has no moments of elements.
void draw_training(Draws& draws, DrawnModel& model) {
  constexpr std::array kOptimizers{"adamw", "adamw", "adamw", "adam",
                                   "lion",  "sgd",   "muon",  "adafactor"};
  constexpr std::array kPrecisions{"bf16", "bf16", "bf16", "bf16", "fp32", "fp16"};
  constexpr std::array kMoments{"fp32", "fp32", "bf16", "8bit"};
  const std::string optimizer = kOptimizers[draws.below(kOptimizers.size())];
  const std::string precision = kPrecisions[draws.below(kPrecisions.size())];
  const bool split = draws.chance(0.5) && precision == "bf16";
  const std::string drawn_moments = kMoments[draws.below(kMoments.size())];
  const std::string moments = optimizer == "adafactor" ? "fp32" : drawn_moments;
  const std::string clip = draws.chance(0.5) ? "0" : "1";
  for (std::string& each : Settings{"optimizer.name=" + optimizer, "train.precision=" + precision,
                                    std::string("optimizer.states=") + (split ? "split" : "fp32"),
                                    "optimizer.moments=" + moments, "train.clip=" + clip}) {
    model.settings.push_back(std::move(each));
  }
  model.words += ", " + optimizer + (split ? ", split" : "") + ", moments " + moments + ", " +
                 precision + ", clip " + clip;
}

// In steps of a fourth root of two. At most `room`, if the profile states one.
std::uint64_t draw_budget(Draws& draws, double bytes, double least, double most,
                          std::uint64_t room) {
  const auto steps = static_cast<std::uint64_t>(std::lround(4 * std::log2(most / least)));
  const double share = least * std::exp2(0.25 * static_cast<double>(draws.below(steps + 1)));
  const auto budget = round_up(static_cast<std::uint64_t>(bytes * share), kMiB);
  return room == 0 ? budget : std::min(budget, room / kMiB * kMiB);
}

Settings budget_settings(const planner::TierBytes& budgets) {
  return {"memory.device=" + format_bytes_exact(budgets[0]),
          "memory.pinned=" + format_bytes_exact(budgets[1]),
          "memory.storage=" + format_bytes_exact(budgets[2])};
}

// Plans a case in different ways and keeps all plans that were found. An internal error of the
// planner counts as a plan that was not found, and goes into `failures`: other cases are measured.
class CasePlans {
 public:
  CasePlans(const HeldOutCase& drawn, json& failures) : drawn_(drawn), failures_(failures) {}

  // Returns nothing if no plan was found.
  std::optional<PlannedStep> plan(const Settings& by_hand, Tier scaled, double scale) {
    planner::TierBytes budgets = drawn_.budgets;
    std::uint64_t& bytes = budgets[static_cast<std::size_t>(scaled)];
    bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) * scale);
    Settings all = budget_settings(budgets);
    all.insert(all.end(), by_hand.begin(), by_hand.end());
    std::string finder = by_hand.empty() ? "auto" : settings_text(by_hand);
    if (scale != 1) {
      finder += ", " + std::string(tier_name(scaled)) + (scale < 1 ? " x 0.5" : " x 2");
    }
    try {
      const auto planned = plan_with(drawn_.hardware, drawn_.settings, all);
      if (planned) found_.push_back({std::move(finder), planned->step_s, planned->peak_bytes});
      return planned;
    } catch (const InternalError& error) {
      all.insert(all.begin(), drawn_.settings.begin(), drawn_.settings.end());
      failures_.push_back(
          {{"machine", drawn_.machine}, {"settings", settings_text(all)}, {"error", error.what()}});
      return std::nullopt;
    }
  }

  const FoundPlan* best() const { return best_that_fits(found_, drawn_.budgets); }

 private:
  const HeldOutCase& drawn_;
  json& failures_;
  std::vector<FoundPlan> found_;
};

// The shares by which automatic steps are longer with twice the budget of a tier.
json more_memory(CasePlans& plans, double step_s) {
  json shares;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kStorage}) {
    const auto planned = plans.plan({}, tier, 2);
    shares[std::string(tier_name(tier))] = planned ? json(planned->step_s / step_s - 1) : json();
  }
  return shares;
}

struct ByHand {
  int fits = 0;  // settings with a plan that fits the case's budgets
  double complete_worst_cpu_s = 0;
};

// Plans drawn settings, each with three budgets of pinned memory.
ByHand plan_by_hand(CasePlans& plans, const HeldOutCase& drawn, Draws& draws, int settings) {
  ByHand figures;
  for (int i = 0; i < settings; ++i) {
    const bool complete = i % kTurns != kTurns - 1;
    const Settings by_hand = complete ? draw_complete_setting(draws) : draw_two_settings(draws);
    bool fits = false;
    for (const double scale : {1.0, 0.5, 2.0}) {
      const auto planned = plans.plan(by_hand, Tier::kPinned, scale);
      if (!planned) continue;
      fits = fits || planner::fits(planned->peak_bytes, drawn.budgets);
      if (!complete) continue;
      figures.complete_worst_cpu_s = std::max(figures.complete_worst_cpu_s, planned->cpu_s);
    }
    if (fits) ++figures.fits;
  }
  return figures;
}

std::uint64_t sub_seed(std::uint64_t seed, int number, int attempt) {
  const auto index = static_cast<std::uint64_t>(number * kMostAttempts + attempt);
  return CounterRng(seed, stream_of("bench/plan/held_out")).bits(index);
}

// Nothing: the planner refuses this attempt.
std::optional<json> measure_attempt(const HeldOutOptions& options, int number, int attempt,
                                    json& failures) {
  const HeldOutCase drawn = options.draw(options.seed, number, attempt);
  CasePlans plans(drawn, failures);
  const auto automatic = plans.plan({}, Tier::kPinned, 1);
  if (!automatic) return std::nullopt;
  json row{{"model", drawn.model}, {"machine", drawn.machine}};
  Settings all = drawn.settings;
  for (std::string& each : budget_settings(drawn.budgets)) all.push_back(std::move(each));
  row["settings"] = settings_text(all);
  row["device_bytes"] = drawn.budgets[0];
  row["pinned_bytes"] = drawn.budgets[1];
  row["refused"] = attempt;
  row["step_s"] = automatic->step_s;
  row["cpu_s"] = automatic->cpu_s;
  row["more_memory"] = more_memory(plans, automatic->step_s);
  plans.plan({}, Tier::kPinned, 0.5);
  Draws draws(sub_seed(options.seed, number, attempt), "bench/plan/held_out/settings");
  const ByHand by_hand = plan_by_hand(plans, drawn, draws, options.settings);
  row["fits"] = by_hand.fits;
  row["complete_worst_cpu_s"] = by_hand.complete_worst_cpu_s;
  const FoundPlan* best = plans.best();
  SLUICE_CHECK(best != nullptr);  // the automatic plan fits
  row["best_s"] = best->step_s;
  row["best_by"] = best->finder;
  row["excess"] = automatic->step_s / best->step_s - 1;
  return row;
}

json measure_case(const HeldOutOptions& options, int number) {
  json failures = json::array();
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    auto row = measure_attempt(options, number, attempt, failures);
    if (!row) continue;
    (*row)["failures"] = std::move(failures);
    return *std::move(row);
  }
  throw InternalError("bench plan: the planner refuses " + std::to_string(kMostAttempts) +
                      " drawn cases in a row");
}

std::string progress_line(const json& row, int ended, int cases) {
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(),
                "%d of %d cases: a step of %s, %.2f%% over the best known; ", ended, cases,
                format_seconds(row["step_s"].get<double>()).c_str(),
                100 * row["excess"].get<double>());
  return line.data() + row["model"].get<std::string>() + ", " + row["machine"].get<std::string>();
}

// Takes cases by number until none is left, from any number of threads.
class CaseQueue {
 public:
  CaseQueue(const HeldOutOptions& options, const std::function<void(const std::string&)>& progress)
      : options_(options), progress_(progress), rows_(static_cast<std::size_t>(options.cases)) {}

  void work() noexcept {
    for (int number = next_++; number < options_.cases; number = next_++) {
      try {
        json row = measure_case(options_, number);
        const MutexLock lock(mutex_);
        ++ended_;
        if (progress_) progress_(progress_line(row, ended_, options_.cases));
        rows_[static_cast<std::size_t>(number)] = std::move(row);
      } catch (...) {
        const MutexLock lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        next_ = options_.cases;
      }
    }
  }

  // Call when no thread works any more. Throws the first failure.
  json take_rows() {
    const MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return std::move(rows_);
  }

 private:
  const HeldOutOptions& options_;
  const std::function<void(const std::string&)>& progress_;
  std::atomic<int> next_{0};
  Mutex mutex_;
  int ended_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ SLUICE_GUARDED_BY(mutex_);
  std::vector<json> rows_ SLUICE_GUARDED_BY(mutex_);
};

// Adds the figures of all cases.
void summarize(json& figures) {
  std::vector<double> excesses;
  std::vector<double> cpu_s;
  double complete_worst_cpu_s = 0;
  int within = 0;
  int refused = 0;
  std::size_t failures = 0;
  int slower_with_more = 0;
  for (const json& row : figures["cases"]) {
    excesses.push_back(row["excess"].get<double>());
    cpu_s.push_back(row["cpu_s"].get<double>());
    complete_worst_cpu_s =
        std::max(complete_worst_cpu_s, row["complete_worst_cpu_s"].get<double>());
    if (excesses.back() <= kAsFast) ++within;
    refused += row["refused"].get<int>();
    failures += row["failures"].size();
    const json& more = row["more_memory"];
    if (std::any_of(more.begin(), more.end(), [](const json& share) {
          return share.is_null() || share.get<double>() > kAsFast;
        })) {
      ++slower_with_more;
    }
  }
  figures["refused"] = refused;
  figures["failures"] = failures;
  figures["within"] = within;
  figures["worst_excess"] = *std::max_element(excesses.begin(), excesses.end());
  figures["median_excess"] = median(excesses);
  figures["slower_with_more"] = slower_with_more;
  figures["worst_cpu_s"] = *std::max_element(cpu_s.begin(), cpu_s.end());
  figures["median_cpu_s"] = median(cpu_s);
  figures["complete_worst_cpu_s"] = complete_worst_cpu_s;
}

}  // namespace

HeldOutCase draw_held_out_case(std::uint64_t seed, int number, int attempt) {
  Draws draws(sub_seed(seed, number, attempt), "bench/plan/held_out/case");
  DrawnModel model = draw_model(draws);
  draw_training(draws, model);
  HeldOutCase drawn;
  drawn.model = std::move(model.words);
  drawn.settings = std::move(model.settings);
  drawn.machine = kMachines[draws.below(kMachines.size())];
  drawn.hardware = planner::load_named_profile(drawn.machine, planner::bundled_profile_directory());
  const std::uint64_t device_room = drawn.hardware.gpu_or_default().memory_bytes;
  const std::uint64_t pinned_room =
      drawn.hardware.memory_bytes / 8 * 7;  // the rest is the system's
  drawn.budgets = {draw_budget(draws, model.bytes, 1.0 / 32, 1, device_room),
                   draw_budget(draws, model.bytes, 1.0 / 16, 2, pinned_room), kStorageBytes};
  return drawn;
}

const FoundPlan* best_that_fits(std::span<const FoundPlan> plans,
                                const planner::TierBytes& budgets) {
  const FoundPlan* best = nullptr;
  for (const FoundPlan& plan : plans) {
    if (!planner::fits(plan.peak_bytes, budgets)) continue;
    if (best == nullptr || plan.step_s < best->step_s) best = &plan;
  }
  return best;
}

json measure_held_out_plans(const HeldOutOptions& options,
                            const std::function<void(const std::string&)>& progress) {
  CaseQueue queue(options, progress);
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < options.threads; ++i) {
      threads.push_back(start_thread("cases", [&queue] { queue.work(); }));
    }
    queue.work();
  }
  json figures{{"seed", options.seed}, {"settings", options.settings}};
  figures["cases"] = queue.take_rows();
  summarize(figures);
  return figures;
}

}  // namespace sluice::bench
