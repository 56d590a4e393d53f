#include "tools/bench/bench_step.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/fio.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/own_directory.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr double kParams256M = 0x1p28;
// The goals of the step.
constexpr double kMostByIo = 1.05;
constexpr double kMostByFio = 1.10;
constexpr double kMostCpuSeconds = 0.3;  // beyond the update, for each 2^28 parameters

struct Variant {
  const char* name;
  const char* states;
  const char* moments;
  const char* what;
};
constexpr std::array<Variant, 4> kVariants{{
    {"split", "split", "fp32", "bf16 weight + 16-bit remainder, fp32 moments"},
    {"fp32", "fp32", "fp32", "bf16 weight (only written), fp32 master and moments"},
    {"split-bf16", "split", "bf16", "bf16 weight + 16-bit remainder, bf16 moments"},
    {"split-8bit", "split", "8bit", "bf16 weight + 16-bit remainder, 8-bit moments"},
}};

std::vector<Variant> chosen(const std::vector<std::string>& names) {
  std::string known;
  for (const Variant& variant : kVariants) {
    known += (known.empty() ? "" : ", ") + std::string(variant.name);
  }
  for (const std::string& name : names) {
    if (std::none_of(kVariants.begin(), kVariants.end(),
                     [&](const Variant& variant) { return variant.name == name; })) {
      throw InputError("bench step: there is no variant '" + name + "'; the variants are " + known);
    }
  }
  std::vector<Variant> variants;
  for (const Variant& variant : kVariants) {
    if (names.empty() || std::find(names.begin(), names.end(), variant.name) != names.end()) {
      variants.push_back(variant);
    }
  }
  return variants;
}

void check(const StepBenchOptions& options) {
  if (options.elems < 1) throw InputError("bench step: elems must be positive");
  if (options.elems > std::int64_t{1} << 36) {
    throw InputError("bench step: elems must be at most 2^36");
  }
  if (options.rounds < 5) throw InputError("bench step: rounds must be at least 5");
  if (options.threads < 0) throw InputError("bench step: threads must not be negative");
}

OffloadedStepShape shape_of(const StepBenchOptions& options) {
  OffloadedStepShape shape = options.shape;
  const std::int64_t of_layer = shape.hidden * (4 * shape.hidden + 3 * shape.ffn);
  shape.layers = (options.elems + of_layer - 1) / of_layer;
  return shape;
}

// The baselines: the storage engine alone, and fio, each on the file that holds the step's state.
class Yardsticks {
 public:
  // Requests are as large as the step's own, and as many at once as its staging holds or the engine
  // takes. The ring is made here; it must outlive the step, because the step's engine registers it.
  Yardsticks(const OwnDirectory& directory, OffloadedStep& step, std::optional<StagingRing>& ring)
      : step_(step), ring_(ring.emplace(depth_of(step) * step.transfer_bytes())) {
    step.engine().register_memory(ring_.data(), ring_.bytes());
    load_.block_bytes = step.transfer_bytes();
    load_.depth = depth_of(step);
    load_.seconds = kDefaultDeadlineSeconds;
    fio_.file = step.state_file();
    fio_.scratch = directory.file("fio.json");
    fio_.bytes = step.state_bytes() / load_.block_bytes * load_.block_bytes;
    fio_.block_bytes = load_.block_bytes;
    fio_.depth = load_.depth;
    fio_.huge_pages = huge_pages_free(fio_buffer_bytes(load_.block_bytes, load_.depth));
  }

  // Reads half of the bytes and writes the other half, at the same time.
  StorageRate io(std::uint64_t bytes) {
    StorageLoad load = load_;
    load.bytes = bytes;
    return step_.run_transfers_alone(load, ring_.data());
  }

  // Returns nothing if fio cannot run; why_not() then gives the reason. about_seconds: the
  // approximate time of the measurement.
  std::optional<StorageRate> fio(double about_seconds) {
    if (!why_not_.empty()) return std::nullopt;
    std::optional<StorageRate> rate;
    try {
      fio_.seconds = std::max(about_seconds, kLeastFioSeconds);
      rate = run_fio(fio_, StorageMix::kDuplex);
      if (!rate) why_not_ = "not installed";
    } catch (const Error& error) {
      why_not_ = std::string("failed: ") + error.what();
    }
    // fio has written over the state, even if it failed.
    if (why_not_ != "not installed") step_.refill_state();
    return rate;
  }
  const std::string& why_not() const { return why_not_; }
  const char* fio_memory() const { return fio_.huge_pages ? "huge pages" : "small pages"; }

  const StorageLoad& load() const { return load_; }

 private:
  static constexpr double kLeastFioSeconds = 0.1;
  static std::uint32_t depth_of(const OffloadedStep& step) {
    const std::uint64_t most = std::min<std::uint64_t>(offload::StorageOptions{}.queue_depth,
                                                       step.state_bytes() / step.transfer_bytes());
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
        step.staging_bytes() / step.transfer_bytes(), 2, std::max<std::uint64_t>(2, most)));
  }
  OffloadedStep& step_;
  StagingRing& ring_;
  StorageLoad load_;
  FioLoad fio_;
  std::string why_not_;
};

struct Rounds {
  std::vector<double> step, io, fio, without_update, update;
  std::vector<double> ratio_io, ratio_fio, ratio_update;
  std::vector<double> cpu, update_cpu, io_cpu, tag_cpu, cpu_beyond;
  std::uint64_t read_bytes = 0;
  std::uint64_t write_bytes = 0;
};

// Checks the bytes that a step moved for each element against the layout.
void check_bytes(const Variant& variant, const OffloadedStep& step,
                 const OffloadedStep::Cost& cost) {
  if (std::string_view(variant.name) != "split") return;
  const std::uint64_t expected = 12 * step.elems();
  if (cost.read_bytes == expected && cost.write_bytes == expected) return;
  throw Error("bench step: the split layout moves 12 + 12 bytes for each of " +
              std::to_string(step.elems()) + " elements, and the storage engine counted " +
              std::to_string(cost.read_bytes) + " read and " + std::to_string(cost.write_bytes) +
              " written");
}

// Measures the step and each of its parts in turn, backwards in every other round, so that drift
// affects all alike. fio overwrites the state; the disk's work after that falls on parts that
// have no goal.
void measure_round(const Variant& variant, OffloadedStep& step, Yardsticks& yardsticks, int round,
                   Rounds& rounds) {
  const std::uint64_t bytes = step.bytes_of_step();
  const double fio_seconds = rounds.step.empty() ? 1.0 : rounds.step.back();
  OffloadedStep::Cost cost;
  OffloadedStep::Cost without;
  OffloadedStep::Cost update;
  StorageRate io;
  std::optional<StorageRate> fio;
  const std::array<std::function<void()>, 5> parts{
      [&] { io = yardsticks.io(bytes); }, [&] { cost = step.run(); },
      [&] { without = step.run_without_update(); }, [&] { fio = yardsticks.fio(fio_seconds); },
      [&] { update = step.run_update_alone(); }};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[round % 2 == 0 ? i : parts.size() - 1 - i]();
  }
  check_bytes(variant, step, cost);
  const auto io_seconds = static_cast<double>(bytes) / io.bytes_per_s();
  rounds.step.push_back(cost.seconds);
  rounds.io.push_back(io_seconds);
  rounds.without_update.push_back(without.seconds);
  rounds.update.push_back(update.seconds);
  rounds.ratio_io.push_back(cost.seconds / io_seconds);
  rounds.ratio_update.push_back(cost.seconds / update.seconds);
  if (fio) {
    rounds.fio.push_back(static_cast<double>(bytes) / fio->bytes_per_s());
    rounds.ratio_fio.push_back(cost.seconds / rounds.fio.back());
  }
  rounds.cpu.push_back(cost.cpu_seconds);
  rounds.update_cpu.push_back(update.cpu_seconds);
  rounds.io_cpu.push_back(io.cpu_s_per_byte() * static_cast<double>(bytes));
  rounds.tag_cpu.push_back(cost.tag_seconds);
  rounds.cpu_beyond.push_back((cost.cpu_seconds - update.cpu_seconds) * kParams256M /
                              static_cast<double>(step.elems()));
  rounds.read_bytes = cost.read_bytes;
  rounds.write_bytes = cost.write_bytes;
}

json figures_of(const Variant& variant, const OffloadedStep& step, const Rounds& rounds,
                const Yardsticks& yardsticks) {
  const auto elems = static_cast<double>(step.elems());
  json figures{{"what", variant.what},
               {"read_bytes_per_param", static_cast<double>(rounds.read_bytes) / elems},
               {"write_bytes_per_param", static_cast<double>(rounds.write_bytes) / elems},
               {"piece_elems", step.piece_elems()},
               {"staging_bytes", step.staging_bytes()},
               {"yardstick_block_bytes", yardsticks.load().block_bytes},
               {"yardstick_depth", yardsticks.load().depth},
               {"step_s", median(rounds.step)},
               {"io_alone_s", median(rounds.io)},
               {"without_update_s", median(rounds.without_update)},
               {"update_alone_s", median(rounds.update)},
               {"ratio_io", median(rounds.ratio_io)},
               {"ratio_update", median(rounds.ratio_update)},
               {"cpu_s", median(rounds.cpu)},
               {"update_cpu_s", median(rounds.update_cpu)},
               {"io_alone_cpu_s", median(rounds.io_cpu)},
               {"tag_cpu_s", median(rounds.tag_cpu)},
               {"cpu_beyond_update_s_per_256m", median(rounds.cpu_beyond)}};
  figures["bound_by"] = median(rounds.update) > median(rounds.io) ? "update" : "storage";
  json goals{{"io", median(rounds.ratio_io) <= kMostByIo},
             {"cpu", median(rounds.cpu_beyond) <= kMostCpuSeconds}};
  if (rounds.fio.empty()) {
    figures["fio"] = yardsticks.why_not();
  } else {
    figures["fio_memory"] = yardsticks.fio_memory();
    figures["fio_s"] = median(rounds.fio);
    figures["ratio_fio"] = median(rounds.ratio_fio);
    goals["fio"] = median(rounds.ratio_fio) <= kMostByFio;
  }
  figures["goals"] = goals;
  return figures;
}

}  // namespace

json run_step_bench(const StepBenchOptions& options) {
  check(options);
  const std::vector<Variant> variants = chosen(options.variants);
  const int threads =
      options.threads > 0 ? options.threads : kernels::host::Parallel::default_threads();
  const OffloadedStepShape shape = shape_of(options);
  json figures{{"threads", threads}, {"rounds", options.rounds}};
  json of_variants = json::object();
  for (const Variant& variant : variants) {
    const OwnDirectory directory(options.directory);
    std::optional<StagingRing> ring;
    OffloadedStep step(shape, variant.states, variant.moments, threads, directory.path());
    Yardsticks yardsticks(directory, step, ring);
    Rounds rounds;
    // Warms the clock and the threads and writes every extent once; it is not counted.
    step.run();
    for (int round = 0; round < options.rounds; ++round) {
      measure_round(variant, step, yardsticks, round, rounds);
    }
    figures["engine"] = step.engine().name();
    figures["parameters"] = step.parameters();
    of_variants[variant.name] = figures_of(variant, step, rounds, yardsticks);
  }
  figures["variants"] = of_variants;
  return {{"event", "bench"}, {"name", "step"}, {"figures", figures}};
}

}  // namespace sluice::bench
