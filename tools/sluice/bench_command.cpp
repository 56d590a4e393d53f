// `sluice bench`: a part compared with its measured limit, or compared with another library's.
//
// Each bench is a subcommand. Its arguments are parsed into the bench's own options, so that --help
// shows the bench's defaults. Byte counts pass through text: "1GiB".
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/units.hpp"
#include "device/cuda/cuda_device.hpp"
#include "engine/train/plan/backend.hpp"
#include "kernels/backend/cuda_kernels.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_peers.hpp"
#include "tools/bench/adam_variants.hpp"
#include "tools/bench/bench_adam.hpp"
#include "tools/bench/bench_allocator.hpp"
#include "tools/bench/bench_copy.hpp"
#include "tools/bench/bench_pipelines.hpp"
#include "tools/bench/bench_plan.hpp"
#include "tools/bench/bench_products.hpp"
#include "tools/bench/bench_step.hpp"
#include "tools/bench/bench_storage.hpp"
#include "tools/bench/bench_table.hpp"
#include "tools/bench/plan_quality.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/kept_heap.hpp"
#include "tools/sluice/terminal.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::cli {
namespace {

// Host memory that a bench uses as the host device's memory.
constexpr std::uint64_t kHostDeviceBytes = 4 * kGiB;
constexpr std::int64_t kMostRounds = 1'000'000;
constexpr std::int64_t kMostThreads = 4096;

// Adds --json, and makes `chosen` print the event that `measure` returns.
void choose(CLI::App& command, Command& chosen, std::function<nlohmann::json()> measure) {
  const auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "One event on stdout instead of a table");
  command.callback([&chosen, measure = std::move(measure), json] {
    chosen = [measure, json] {
      const nlohmann::json event = measure();
      if (*json) {
        std::cout << json_text(event) << std::endl;
      } else {
        std::cout << bench::bench_table(event);
      }
      return 0;
    };
  });
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Threads; 0: all cores")
      ->capture_default_str()
      ->check(whole_number(0, kMostThreads));
}

void add_rounds(CLI::App& command, int& rounds, const char* least) {
  command.add_option("--rounds", rounds, std::string("Rounds of measurement, at least ") + least)
      ->capture_default_str()
      ->check(whole_number(0, kMostRounds));
}

void add_variants(CLI::App& command, std::vector<std::string>& variants, const std::string& known) {
  command
      .add_option("--variants", variants, "Some of " + known + ", separated by commas; else all")
      ->delimiter(',');
}

void add_storage_directory(CLI::App& command, std::string& directory) {
  command.add_option("--storage", directory, "A directory on the disk to measure")
      ->capture_default_str();
}

// The text of an option in bytes, next to the default that --help shows.
std::shared_ptr<std::string> add_bytes(CLI::App& command, const char* option,
                                       std::uint64_t default_bytes, const char* meaning) {
  auto text = std::make_shared<std::string>(format_bytes_exact(default_bytes));
  command.add_option(option, *text, meaning)->capture_default_str();
  return text;
}

// The virtual environment of tools/bench/peers that runs the peer libraries.
class Peers {
 public:
  static Peers add(CLI::App& command) {
    Peers peers;
    command.add_option("--peers", *peers.venv_,
                       "Measure torch and DeepSpeed too: a virtual environment made by "
                       "tools/bench/peers (default: the one in the cache, if there), or none");
    return peers;
  }
  // The interpreter; empty: no peer is measured.
  std::string python() const {
    if (*venv_ == "none") return "";
    if (*venv_) return bench::python_of(**venv_);
    if (const auto python = bench::default_peers_python()) return *python;
    std::cerr << "sluice: no other library is compared with ours: tools/bench/peers installs "
                 "torch and DeepSpeed for that\n";
    return "";
  }

 private:
  std::shared_ptr<std::optional<std::string>> venv_ =
      std::make_shared<std::optional<std::string>>();
};

// The device and its kernels for --backend and --threads.
struct DeviceArguments {
  std::string backend = "auto";
  int threads = 0;

  static std::shared_ptr<DeviceArguments> add(CLI::App& command) {
    auto arguments = std::make_shared<DeviceArguments>();
    command.add_option("--backend", arguments->backend, "auto, host or cuda")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "host", "cuda"}));
    add_threads(command, arguments->threads);
    return arguments;
  }
};

struct BenchDevice {
  explicit BenchDevice(const DeviceArguments& arguments) {
    config::Config config;
    config.train.threads =
        arguments.threads > 0 ? arguments.threads : kernels::host::Parallel::default_threads();
    threads = static_cast<int>(config.train.threads);
    if (arguments.backend == "host") config.memory.backend = config::Config::Backend::kHost;
    if (arguments.backend == "cuda") config.memory.backend = config::Config::Backend::kCuda;
    train::settle_backend(config);
    backend = train::make_backend(config);
    memory_bytes = backend.device_memory_bytes.value_or(kHostDeviceBytes);
    device = backend.make_device(memory_bytes);
  }
  int threads = 1;
  std::uint64_t memory_bytes = 0;
  train::Backend backend;
  std::unique_ptr<device::Device> device;
};

void add_adam(CLI::App& bench, Command& chosen) {
  CLI::App* command =
      bench.add_subcommand("adam", "Optimizer updates compared with memory traffic");
  const auto options = std::make_shared<bench::AdamBenchOptions>();
  command->add_option("--elems", options->elems, "Parameters to update, a multiple of 16384")
      ->capture_default_str();
  add_threads(*command, options->threads);
  add_rounds(*command, options->rounds, "7");
  std::string known;
  for (const bench::AdamVariant& variant : bench::adam_variants()) {
    known += (known.empty() ? "" : ", ") + std::string(variant.name);
  }
  add_variants(*command, options->variants, known);
  const Peers peers = Peers::add(*command);
  choose(*command, chosen, [options, peers] {
    options->peers_python = peers.python();
    return bench::run_adam_bench(*options);
  });
}

void add_allocator(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand("allocator", "An allocation and a free, in ns");
  const auto options = std::make_shared<bench::AllocatorBenchOptions>();
  add_threads(*command, options->threads);
  command->add_option("--seconds", options->seconds, "Approximate time for each figure")
      ->capture_default_str()
      ->check(seconds_between(0.001, 3600));
  choose(*command, chosen, [options] { return bench::run_allocator_bench(*options); });
}

void add_storage(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand("storage", "The storage engine compared with fio");
  const auto options = std::make_shared<bench::StorageBenchOptions>();
  add_storage_directory(*command, options->directory);
  const auto bytes = add_bytes(*command, "--bytes", options->bytes, "Size of the file");
  const auto block = add_bytes(*command, "--block", options->block_bytes, "Size of a request");
  command->add_option("--depth", options->depth, "Requests in flight")
      ->capture_default_str()
      ->check(whole_number(2, 4096));
  command->add_option("--seconds", options->seconds, "Approximate time of each measurement")
      ->capture_default_str()
      ->check(seconds_between(0.001, 3600));
  add_rounds(*command, options->rounds, "1");
  command->add_flag("!--no-sweep", options->sweep, "Skip the search for fio's best setting");
  choose(*command, chosen, [options, bytes, block] {
    options->bytes = *bytes_argument("--bytes", *bytes);
    options->block_bytes = *bytes_argument("--block", *block);
    return bench::run_storage_bench(*options);
  });
}

void add_step(CLI::App& bench, Command& chosen) {
  CLI::App* command =
      bench.add_subcommand("step", "The optimizer step of a model whose state is on storage");
  const auto options = std::make_shared<bench::StepBenchOptions>();
  add_storage_directory(*command, options->directory);
  command->add_option("--elems", options->elems, "Least number of parameters")
      ->capture_default_str();
  add_threads(*command, options->threads);
  add_rounds(*command, options->rounds, "5");
  add_variants(*command, options->variants, "split, fp32, split-bf16, split-8bit");
  choose(*command, chosen, [options] { return bench::run_step_bench(*options); });
}

void add_copy(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand("copy", "The link between host and device");
  const auto options = std::make_shared<bench::CopyBenchOptions>();
  const auto where = DeviceArguments::add(*command);
  const auto bytes =
      add_bytes(*command, "--bytes", options->bytes,
                "Size of each of two host and two device arrays, a multiple of 64MiB");
  add_rounds(*command, options->rounds, "7");
  choose(*command, chosen, [options, where, bytes] {
    options->bytes = *bytes_argument("--bytes", *bytes);
    const BenchDevice on(*where);
    if (options->bytes > on.memory_bytes / 2) {
      throw InputError("--bytes " + format_bytes_exact(options->bytes) +
                       ": two arrays of that size must fit " + format_bytes_exact(on.memory_bytes) +
                       " of device memory");
    }
    options->device = on.device.get();
    return bench::run_copy_bench(*options);
  });
}

// Says on stderr what a long bench is doing: at each begin, every other second from then on, and at
// its end.
class Notices {
 public:
  void begin(const std::string& text) {
    now_.reset();
    print_to_stderr("bench: " + text + "\n");
    now_.emplace(
        [text](double seconds) {
          print_to_stderr("bench: " + text + ": " + format_seconds(seconds) + " so far\n");
        },
        kInterval, kInterval);
  }
  void end(const std::string& text) {
    now_.reset();
    print_to_stderr("bench: " + text + "\n");
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{2000};
  std::optional<WaitingNotice> now_;
};

void add_plan(CLI::App& bench, Command& chosen) {
  CLI::App* command =
      bench.add_subcommand("plan", "The time to plan; or plans compared with settings by hand");
  const auto options = std::make_shared<bench::PlanBenchOptions>();
  command->add_option("--shapes", options->shapes, "Random models to plan; 0: none")
      ->capture_default_str()
      ->check(whole_number(0, 100'000));
  command->add_flag("--quality", options->quality,
                    "Compare automatic plans with random settings by hand");
  command
      ->add_option("--first-pair", options->first_pair,
                   "The first pair of a model and a machine, with --quality")
      ->capture_default_str()
      ->check(whole_number(1, bench::plan_quality_pairs()));
  command->add_option("--pairs", options->pairs, "The last pair of a model and a machine")
      ->capture_default_str()
      ->check(whole_number(1, bench::plan_quality_pairs()));
  command
      ->add_option("--settings", options->settings,
                   "Settings by hand: of each kind with --quality (100), of a case with --held-out "
                   "(30)")
      ->check(whole_number(1, 100'000));
  command
      ->add_option("--small", options->small,
                   "Compare this many small models with exhaustive search")
      ->capture_default_str()
      ->check(whole_number(0, 100'000));
  command->add_option("--first-small", options->first_small, "The first small model, with --small")
      ->capture_default_str()
      ->check(whole_number(0, 100'000));
  command->add_flag("--ranks", options->ranks,
                    "Compare ZeRO-3 on 8 ranks with compute alone and traffic alone");
  command->add_flag("--worlds", options->worlds,
                    "Plan thousands of ranks on paper, and compare them with published figures");
  command
      ->add_option(
          "--held-out", options->held_out,
          "Compare automatic plans of cases drawn from this seed with the best known plans")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()));
  command->add_option("--cases", options->cases, "Drawn cases, with --held-out")
      ->capture_default_str()
      ->check(whole_number(1, 100'000));
  command->add_option("--threads", options->threads, "Cases planned side by side, with --held-out")
      ->capture_default_str()
      ->check(whole_number(1, kMostThreads));
  choose(*command, chosen, [options] {
    Notices notices;
    keep_freed_memory();
    return bench::run_plan_bench(*options, {[&](const std::string& text) { notices.begin(text); },
                                            [&](const std::string& text) { notices.end(text); }});
  });
}

void add_pipelines(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand(
      "pipelines", "Bubbles of pipeline orders compared with their closed forms");
  const auto options = std::make_shared<bench::PipelineBenchOptions>();
  const auto add = [&](const char* option, auto& value, const char* meaning, std::int64_t most) {
    command->add_option(option, value, meaning)
        ->capture_default_str()
        ->check(whole_number(1, most));
  };
  add("--ranks", options->ranks, "Ranks of the pipeline", 256);
  add("--stages", options->stages_each, "Stages of each rank, in orders that take several", 16);
  add("--microbatches", options->microbatches, "Micro-batches of a step", 1024);
  add("--forward", options->times.forward, "Time of a forward pass of a stage", kMostRounds);
  add("--input", options->times.backward_input, "Of a gradient of its input", kMostRounds);
  add("--weight", options->times.backward_weight, "Of a gradient of its weights", kMostRounds);
  command->add_option("--order", options->order, "This one alone, with its lists as torch's CSV");
  command->add_option("--file", options->file, "An order in torch's pipelining CSV instead");
  choose(*command, chosen, [options] { return bench::run_pipelines_bench(*options); });
}

// The options of a bench of products, and the device that it runs on.
struct ProductArguments {
  ProductArguments(CLI::App& command, bench::ProductBenchOptions& options)
      : where(DeviceArguments::add(command)), peers(Peers::add(command)) {
    add_rounds(command, options.rounds, "7");
  }
  void use(bench::ProductBenchOptions& options, const BenchDevice& on) const {
    options.device = on.device.get();
    options.kernels = on.backend.device_kernels.get();
    options.threads = on.threads;
    options.peers_python = peers.python();
  }
  std::shared_ptr<DeviceArguments> where;
  Peers peers;
};

void add_gemm(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand("gemm", "Matrix products of a block");
  const auto options = std::make_shared<bench::ProductBenchOptions>();
  const ProductArguments arguments(*command, *options);
  choose(*command, chosen, [options, arguments] {
    const BenchDevice on(*arguments.where);
    arguments.use(*options, on);
    return bench::run_gemm_bench(*options);
  });
}

void add_attention(CLI::App& bench, Command& chosen) {
  CLI::App* command = bench.add_subcommand("attention", "Attention of a block");
  const auto options = std::make_shared<bench::ProductBenchOptions>();
  const ProductArguments arguments(*command, *options);
  command->add_option("--time", options->time, "Tokens of a sequence; 0: 4096 on a GPU, else 512")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 20));
  const auto scores = std::make_shared<std::string>();
  command->add_option("--slice", *scores,
                      "Gradients of scores that a call of cuDNN's backward pass may keep, such as "
                      "64MiB, in place of what training uses");
  choose(*command, chosen, [options, arguments, scores] {
    BenchDevice on(*arguments.where);
    if (!scores->empty()) {
      if (on.backend.name != "cuda") throw InputError("--slice is of cuDNN; it needs a GPU");
      on.backend.device_kernels = kernels::make_cuda_kernels(
          {.ordinal = device::find_cuda_devices().devices.front().ordinal,
           .attention_score_bytes = *bytes_argument("--slice", *scores)});
    }
    arguments.use(*options, on);
    return bench::run_attention_bench(*options);
  });
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a part against its limit");
  bench->require_subcommand(1);
  add_adam(*bench, chosen);
  add_allocator(*bench, chosen);
  add_attention(*bench, chosen);
  add_copy(*bench, chosen);
  add_gemm(*bench, chosen);
  add_pipelines(*bench, chosen);
  add_plan(*bench, chosen);
  add_step(*bench, chosen);
  add_storage(*bench, chosen);
}

}  // namespace sluice::cli
