// `sluice bench`: a part beside its limit, or beside somebody else's.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/train/backend.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_peers.hpp"
#include "tools/bench/bench_adam.hpp"
#include "tools/bench/bench_allocator.hpp"
#include "tools/bench/bench_copy.hpp"
#include "tools/bench/bench_products.hpp"
#include "tools/bench/bench_step.hpp"
#include "tools/bench/bench_storage.hpp"
#include "tools/bench/bench_table.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/commands.hpp"

namespace sluice::cli {
namespace {

// What a bench may take of the host's own memory as a device's.
constexpr std::uint64_t kHostDeviceBytes = 4 * kGiB;

// The interpreter that runs others' work; empty: none.
std::string peers_python(const std::optional<std::string>& venv) {
  if (venv == "none") return "";
  if (venv) return bench::python_of(*venv);
  if (const std::optional<std::string> python = bench::default_peers_python()) return *python;
  std::cerr << "sluice: nothing of others' is measured beside it: tools/bench/peers installs torch "
               "and DeepSpeed for that\n";
  return "";
}

// A device of the backend that was asked for, with its kernels.
struct BenchDevice {
  explicit BenchDevice(const BenchArguments& arguments) {
    config::Config config;
    config.train.threads =
        arguments.threads > 0 ? arguments.threads : kernels::host::Parallel::default_threads();
    threads = static_cast<int>(config.train.threads);
    if (arguments.backend == "host") config.memory.backend = config::Config::Backend::kHost;
    if (arguments.backend == "cuda") config.memory.backend = config::Config::Backend::kCuda;
    train::settle_backend(config);
    backend = train::make_backend(config);
    device = backend.make_device(backend.device_memory_bytes.value_or(kHostDeviceBytes));
  }
  int threads = 1;
  train::Backend backend;
  std::unique_ptr<device::Device> device;
};

nlohmann::json adam(const BenchArguments& arguments) {
  bench::AdamBenchOptions options;
  options.threads = static_cast<int>(arguments.threads);
  options.elems = arguments.elems.value_or(options.elems);
  options.rounds = static_cast<int>(arguments.rounds.value_or(options.rounds));
  options.variants = arguments.variants;
  options.peers_python = peers_python(arguments.peers);
  return bench::run_adam_bench(options);
}

nlohmann::json allocator(const BenchArguments& arguments) {
  bench::AllocatorBenchOptions options;
  options.threads = static_cast<int>(arguments.threads);
  options.seconds = arguments.seconds.value_or(options.seconds);
  return bench::run_allocator_bench(options);
}

nlohmann::json storage(const BenchArguments& arguments) {
  bench::StorageBenchOptions options;
  options.directory = arguments.storage_path;
  options.seconds = arguments.seconds.value_or(options.seconds);
  options.bytes = bytes_argument("--bytes", arguments.bytes).value_or(options.bytes);
  options.block_bytes = bytes_argument("--block", arguments.block).value_or(options.block_bytes);
  options.depth = static_cast<std::uint32_t>(arguments.depth.value_or(options.depth));
  options.rounds = static_cast<int>(arguments.rounds.value_or(options.rounds));
  options.sweep = !arguments.no_sweep;
  return bench::run_storage_bench(options);
}

nlohmann::json step(const BenchArguments& arguments) {
  bench::StepBenchOptions options;
  options.directory = arguments.storage_path;
  options.threads = static_cast<int>(arguments.threads);
  options.elems = arguments.elems.value_or(options.elems);
  options.rounds = static_cast<int>(arguments.rounds.value_or(options.rounds));
  options.variants = arguments.variants;
  return bench::run_step_bench(options);
}

nlohmann::json copy(const BenchArguments& arguments) {
  const BenchDevice on(arguments);
  bench::CopyBenchOptions options;
  options.device = on.device.get();
  options.bytes = bytes_argument("--bytes", arguments.bytes).value_or(options.bytes);
  options.rounds = static_cast<int>(arguments.rounds.value_or(options.rounds));
  return bench::run_copy_bench(options);
}

nlohmann::json products(const BenchArguments& arguments) {
  const BenchDevice on(arguments);
  bench::ProductBenchOptions options;
  options.device = on.device.get();
  options.kernels = on.backend.device_kernels.get();
  options.threads = on.threads;
  options.rounds = static_cast<int>(arguments.rounds.value_or(options.rounds));
  options.peers_python = peers_python(arguments.peers);
  return arguments.name == "gemm" ? bench::run_gemm_bench(options) : bench::run_attention_bench(options);
}

nlohmann::json run(const BenchArguments& arguments) {
  if (arguments.name == "adam") return adam(arguments);
  if (arguments.name == "allocator") return allocator(arguments);
  if (arguments.name == "storage") return storage(arguments);
  if (arguments.name == "copy") return copy(arguments);
  if (arguments.name == "step") return step(arguments);
  if (arguments.name == "gemm" || arguments.name == "attention") return products(arguments);
  throw InputError(
      "bench '" + arguments.name +
      "' does not exist; there are: adam, allocator, attention, copy, gemm, step, storage");
}

}  // namespace

int bench_command(const BenchArguments& arguments) {
  const nlohmann::json event = run(arguments);
  if (arguments.json) {
    std::cout << event.dump() << std::endl;
  } else {
    std::cout << bench::bench_table(event);
  }
  return 0;
}

}  // namespace sluice::cli
