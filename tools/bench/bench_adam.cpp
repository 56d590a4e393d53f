#include "tools/bench/bench_adam.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_peer_rounds.hpp"
#include "tools/bench/adam_peers.hpp"
#include "tools/bench/adam_traffic.hpp"
#include "tools/bench/median.hpp"

namespace sluice {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// An array on huge pages where the system has them, as pinned memory is.
template <class T>
class Array {
 public:
  explicit Array(std::int64_t elems) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t bytes =
        (static_cast<std::size_t>(elems) * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage;
    memory_.reset(std::aligned_alloc(kHugePage, bytes));
    if (memory_ == nullptr) throw std::bad_alloc();
    // A wish: without huge pages the figures are those of small ones, on both sides of the ratio.
    static_cast<void>(madvise(memory_.get(), bytes, MADV_HUGEPAGE));
  }
  T* data() const { return static_cast<T*>(memory_.get()); }

 private:
  std::unique_ptr<void, Free> memory_;
};

template <class Run>
double seconds_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The states of one step and gradients of both dtypes.
class Step {
 public:
  Step(const host::Parallel& parallel, std::int64_t elems)
      : parallel_(parallel),
        elems_(elems),
        segment_{0, elems, 0.1f},
        grad16_(elems),
        grad32_(elems),
        master_(elems),
        moment1_(elems),
        moment2_(elems),
        weight_(elems) {
    // First touched by the threads that will work on it, in the pieces that they will take.
    parallel.for_blocks(elems, host::kUpdatePieceElems, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        // A hash spread over [-1, 1): only that values vary matters.
        const auto mixed = static_cast<std::uint32_t>(i) * 2654435761u;
        const float value = static_cast<float>(static_cast<std::int32_t>(mixed)) * 0x1p-31f;
        grad32_.data()[i] = value * 1e-2f;
        grad16_.data()[i] = bf16_from_float(value * 1e-2f);
        master_.data()[i] = value;
        moment1_.data()[i] = value * 1e-3f;
        moment2_.data()[i] = value * value * 1e-6f;
        weight_.data()[i] = bf16{};
      }
    });
    scalars_.lr = 1e-4f;
  }

  double adamw_params_per_s(DType grad_dtype) const {
    const UpdateBuffers buffers = buffers_of(grad_dtype);
    return rate([&] {
      host::adamw(parallel_, OptimizerOptions{}, buffers, {&segment_, 1}, scalars_);
    });
  }
  double traffic_params_per_s(DType grad_dtype) const {
    const UpdateBuffers buffers = buffers_of(grad_dtype);
    return rate([&] { adam_traffic(parallel_, buffers, 0); });
  }

 private:
  template <class Run>
  double rate(const Run& run) const {
    return static_cast<double>(elems_) / seconds_of(run);
  }

  UpdateBuffers buffers_of(DType grad_dtype) const {
    UpdateBuffers buffers;
    buffers.grad_dtype = grad_dtype;
    if (grad_dtype == DType::kBF16) {
      buffers.grad = grad16_.data();
    } else {
      buffers.grad = grad32_.data();
      buffers.round_grad_to = DType::kBF16;  // the accumulator of several micro-batches
    }
    buffers.master = master_.data();
    buffers.moment1 = moment1_.data();
    buffers.moment2 = moment2_.data();
    buffers.weight = weight_.data();
    buffers.elems = elems_;
    return buffers;
  }

  const host::Parallel& parallel_;
  std::int64_t elems_;
  ParameterSegment segment_;
  UpdateScalars scalars_;
  Array<bf16> grad16_;
  Array<float> grad32_;
  Array<float> master_, moment1_, moment2_;
  Array<bf16> weight_;
};

struct Rounds {
  std::vector<double> adamw, traffic, ratio;
};

void report(nlohmann::json& figures, const std::string& prefix, const Rounds& rounds,
            std::uint64_t grad_bytes) {
  // Gradient in; master and both moments in and out; bf16 weight out.
  const std::uint64_t bytes_per_param = grad_bytes + 2 * 3 * 4 + 2;
  const double params_per_s = median(rounds.adamw);
  figures[prefix + "_params_per_s"] = params_per_s;
  figures[prefix + "_traffic_params_per_s"] = median(rounds.traffic);
  figures[prefix + "_ratio"] = median(rounds.ratio);
  figures[prefix + "_bytes_per_param"] = bytes_per_param;
  figures[prefix + "_gib_per_s"] = params_per_s * static_cast<double>(bytes_per_param) / 0x1p30;
}

std::optional<AdamPeerRounds> open_peers(const AdamBenchOptions& options, int threads) {
  if (options.peers_python.empty()) return std::nullopt;
  std::optional<AdamPeers> peers = AdamPeers::open(options.peers_python, threads, options.elems);
  if (!peers) throw InputError("bench adam: there is no program " + options.peers_python);
  return AdamPeerRounds(std::move(*peers), options.elems);
}

}  // namespace

nlohmann::json run_adam_bench(const AdamBenchOptions& options) {
  if (options.elems < host::kUpdatePieceElems || options.elems % host::kUpdatePieceElems != 0) {
    throw InputError("bench adam: elems must be a multiple of " +
                     std::to_string(host::kUpdatePieceElems) + ", at least that many");
  }
  if (options.rounds < 7) throw InputError("bench adam: rounds must be at least 7");
  if (options.threads < 0) throw InputError("bench adam: threads must not be negative");
  const host::Parallel parallel(options.threads);
  const Step step(parallel, options.elems);
  std::optional<AdamPeerRounds> peers = open_peers(options, parallel.threads());
  Rounds of_bf16, of_f32;
  // The first round warms the clock and the threads, and is dropped.
  for (int round = -1; round < options.rounds; ++round) {
    for (const DType grad : {DType::kBF16, DType::kF32}) {
      const double adamw = step.adamw_params_per_s(grad);
      const double traffic = step.traffic_params_per_s(grad);
      if (round < 0) continue;
      Rounds& rounds = grad == DType::kBF16 ? of_bf16 : of_f32;
      rounds.adamw.push_back(adamw);
      rounds.traffic.push_back(traffic);
      rounds.ratio.push_back(adamw / traffic);
    }
    if (peers) peers->run_round(round >= 0);
  }
  nlohmann::json figures = {{"threads", parallel.threads()},
                            {"elems", options.elems},
                            {"rounds", options.rounds},
                            {"instruction_set", vector_instruction_set()}};
  report(figures, "bf16", of_bf16, 2);
  report(figures, "f32", of_f32, 4);
  if (peers) figures["peers"] = peers->figures({{"bf16", of_bf16.adamw}, {"f32", of_f32.adamw}});
  return {{"event", "bench"}, {"name", "adam"}, {"figures", figures}};
}

}  // namespace sluice
