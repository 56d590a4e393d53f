#include "tools/bench/bench_products.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/rng.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/peer_process.hpp"
#include "tools/bench/peer_products.hpp"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kProtocol = 1;
constexpr double kSecondsATime = 0.05;  // approximate time of each measurement in a round
constexpr int kMostRepeats = 1000;
constexpr double kPeerStartSeconds = 300;
constexpr double kPeerRunSeconds = 120;

struct Shape {
  std::int64_t tokens = 0, hidden = 0, heads = 0, time = 0;
};

// The shapes of a mid-sized model: 7 B parameters on a GPU, 0.1 B on a CPU.
Shape shape_of(const ProductBenchOptions& options) {
  const bool gpu = options.device->facts().backend == "cuda";
  const auto or_default = [](std::int64_t given, std::int64_t other) {
    return given > 0 ? given : other;
  };
  return {or_default(options.tokens, gpu ? 16384 : 1024),
          or_default(options.hidden, gpu ? 4096 : 768), or_default(options.heads, gpu ? 32 : 12),
          or_default(options.time, gpu ? 4096 : 512)};
}

void check(const ProductBenchOptions& options, const Shape& shape) {
  SLUICE_CHECK(options.device != nullptr && options.kernels != nullptr);
  if (!kernels::is_act_dtype(options.dtype))
    throw InputError("bench: the dtype must be bf16, f16 or f32");
  if (options.rounds < 7) throw InputError("bench: there must be at least 7 rounds");
  if (shape.hidden % shape.heads != 0 || shape.tokens % shape.time != 0) {
    throw InputError("bench: hidden must be a multiple of heads, and tokens a multiple of time");
  }
}

// An array on the device, filled with uniform numbers in [-0.5, 0.5) or with zeros.
class DeviceArray {
 public:
  DeviceArray(device::Device& device, device::Stream& stream, DType dtype, std::int64_t elems,
              bool filled) {
    const std::uint64_t bytes = bytes_of(dtype, static_cast<std::uint64_t>(elems));
    memory_ = device.allocate((bytes + 255) / 256 * 256);
    std::vector<std::byte> host(bytes);
    const CounterRng random(1, stream_of("bench"));
    for (std::int64_t i = 0; filled && i < elems; ++i) {
      const auto number = static_cast<float>(random.uniform(static_cast<std::uint64_t>(i)) - 0.5);
      if (dtype == DType::kF32) reinterpret_cast<float*>(host.data())[i] = number;
      if (dtype == DType::kBF16) reinterpret_cast<bf16*>(host.data())[i] = bf16_from_float(number);
      if (dtype == DType::kF16) reinterpret_cast<f16*>(host.data())[i] = f16_from_float(number);
    }
    stream.copy(memory_.data(), host.data(), bytes, device::CopyKind::kHostToDevice);
    stream.synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
  }
  void* data() const { return memory_.data(); }

 private:
  device::RawBuffer memory_;
};

// One of our operations; the peer knows it by the same name.
struct Job {
  std::string name;
  double flops = 0;
  std::function<void()> call;  // inside Stream::launch
};

// torch in a process of its own.
class Peer {
 public:
  static std::optional<Peer> open(const ProductBenchOptions& options, const Shape& shape) {
    if (options.peers_python.empty()) return std::nullopt;
    const auto text = [](std::int64_t number) { return std::to_string(number); };
    auto process = PeerProcess::start(
        {options.peers_python, "SCRIPT", "--backend", options.device->facts().backend, "--dtype",
         std::string(dtype_name(options.dtype)), "--threads", text(options.threads), "--tokens",
         text(shape.tokens), "--hidden", text(shape.hidden), "--heads", text(shape.heads), "--time",
         text(shape.time)},
        kPeerProducts);
    if (!process) throw Error("bench: there is no interpreter " + options.peers_python);
    Peer peer(std::move(*process));
    const json answer = parse(peer.process_.read_line(Deadline::after_seconds(kPeerStartSeconds),
                                                      "torch to load for bench"));
    if (answer.value("protocol", 0) != kProtocol || !answer.contains("versions")) {
      throw Error("bench: the peer introduces itself wrongly: " + json_text(answer));
    }
    peer.versions_ = answer["versions"].get<std::string>();
    return peer;
  }

  const std::string& versions() const { return versions_; }

  double seconds(const std::string& name, int repeats) {
    const json answer =
        parse(process_.ask(json_text(json{{"run", name}, {"repeats", repeats}}),
                           Deadline::after_seconds(kPeerRunSeconds), "torch's " + name));
    const auto seconds = answer.find("seconds");
    if (answer.value("ran", "") != name || seconds == answer.end() || !seconds->is_number() ||
        !(seconds->get<double>() > 0)) {
      throw Error("bench: torch answered " + json_text(answer) +
                  " to a request for the seconds of " + name);
    }
    return seconds->get<double>();
  }

 private:
  explicit Peer(PeerProcess process) : process_(std::move(process)) {}
  static json parse(const std::string& line) {
    json answer = try_parse_json(line);
    if (!answer.is_object()) throw Error("bench: torch's answer is not a JSON object");
    if (answer.contains("error")) throw Error("bench: torch: " + json_text(answer["error"]));
    return answer;
  }

  PeerProcess process_;
  std::string versions_;
};

double seconds_of(device::Stream& stream, const Job& job, int repeats) {
  const auto begin = Clock::now();
  for (int i = 0; i < repeats; ++i) stream.launch(job.call);
  stream.synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
  return std::chrono::duration<double>(Clock::now() - begin).count() / repeats;
}

// The number of calls of a job in a round.
int repeats_of(device::Stream& stream, const Job& job) {
  seconds_of(stream, job, 1);  // loads code and makes plans
  return static_cast<int>(
      std::clamp(std::ceil(kSecondsATime / seconds_of(stream, job, 2)), 1.0, double{kMostRepeats}));
}

json measure(device::Stream& stream, const std::string& family, const std::vector<Job>& jobs,
             std::optional<Peer>& peer, int rounds) {
  struct Samples {
    int repeats = 0;
    std::vector<double> ours, peers, ratios;
  };
  std::vector<Samples> samples(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    samples[i].repeats = repeats_of(stream, jobs[i]);
    if (peer) peer->seconds(family + "/" + jobs[i].name, 1);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Samples& of = samples[i];
      of.ours.push_back(seconds_of(stream, jobs[i], of.repeats));
      if (!peer) continue;
      of.peers.push_back(peer->seconds(family + "/" + jobs[i].name, of.repeats));
      of.ratios.push_back(of.peers.back() / of.ours.back());
    }
  }
  json products;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    json& of = products[jobs[i].name];
    of["tflops"] = jobs[i].flops / median(samples[i].ours) / 1e12;
    if (!peer) continue;
    of["peer_tflops"] = jobs[i].flops / median(samples[i].peers) / 1e12;
    of["ratio"] = median(samples[i].ratios);
  }
  return products;
}

json bench_event(const ProductBenchOptions& options, const Shape& shape, const std::string& name,
                 device::Stream& stream, const std::vector<Job>& jobs) {
  std::optional<Peer> peer = Peer::open(options, shape);
  json figures{{"backend", options.device->facts().backend},
               {"device", options.device->facts().name},
               {"arithmetic", options.kernels->arithmetic()},
               {"dtype", dtype_name(options.dtype)},
               {"tokens", shape.tokens},
               {"hidden", shape.hidden},
               {"rounds", options.rounds},
               {"products", measure(stream, name, jobs, peer, options.rounds)}};
  if (peer) figures["peer"] = peer->versions();
  return {{"event", "bench"}, {"name", name}, {"figures", figures}};
}

}  // namespace

json run_gemm_bench(const ProductBenchOptions& options) {
  const Shape shape = shape_of(options);
  check(options, shape);
  kernels::Kernels& kernels = *options.kernels;
  const auto stream = options.device->create_stream("bench");
  const std::int64_t wide = 4 * shape.hidden;
  const auto array = [&](std::int64_t elems, bool filled) {
    return DeviceArray(*options.device, *stream, options.dtype, elems, filled);
  };
  const DeviceArray x = array(shape.tokens * shape.hidden, true);
  const DeviceArray w = array(wide * shape.hidden, true);
  const DeviceArray dy = array(shape.tokens * wide, true);
  const DeviceArray out = array(std::max(shape.tokens, shape.hidden) * wide, false);
  // Weights are [out, in]: y = x W^T, dx = dy W, dW = dy^T x.
  const DType t = options.dtype;
  const kernels::GemmShape forward{shape.tokens, wide, shape.hidden, false, true, t, t};
  const kernels::GemmShape input{shape.tokens, shape.hidden, wide, false, false, t, t};
  const kernels::GemmShape weight{wide, shape.hidden, shape.tokens, true, false, t, t};
  const std::uint64_t workspace_bytes =
      std::max({kernels.gemm_workspace_bytes(forward), kernels.gemm_workspace_bytes(input),
                kernels.gemm_workspace_bytes(weight), std::uint64_t{256}});
  const device::RawBuffer workspace = options.device->allocate(workspace_bytes);
  const auto job = [&](const char* name, const kernels::GemmShape& product, const DeviceArray& a,
                       const DeviceArray& b) {
    const double flops = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                         static_cast<double>(product.k);
    return Job{name, flops, [&kernels, product, &a, &b, &out, &workspace, &stream] {
                 kernels.set_stream(stream->native());
                 kernels.gemm(product, a.data(), b.data(), nullptr, out.data(), workspace.data());
               }};
  };
  return bench_event(options, shape, "gemm", *stream,
                     {job("forward", forward, x, w), job("input_gradient", input, dy, w),
                      job("weight_gradient", weight, dy, x)});
}

json run_attention_bench(const ProductBenchOptions& options) {
  const Shape shape = shape_of(options);
  check(options, shape);
  kernels::Kernels& kernels = *options.kernels;
  const auto stream = options.device->create_stream("bench");
  const std::int64_t batch = shape.tokens / shape.time;
  const kernels::AttentionShape attention{
      batch, shape.time, shape.heads, shape.heads, shape.hidden / shape.heads, options.dtype};
  const auto array = [&](DType dtype, std::int64_t elems, bool filled) {
    return DeviceArray(*options.device, *stream, dtype, elems, filled);
  };
  const DeviceArray qkv = array(options.dtype, shape.tokens * 3 * shape.hidden, true);
  const DeviceArray dqkv = array(options.dtype, shape.tokens * 3 * shape.hidden, false);
  const DeviceArray out = array(options.dtype, shape.tokens * shape.hidden, false);
  const DeviceArray dout = array(options.dtype, shape.tokens * shape.hidden, true);
  const DeviceArray lse = array(DType::kF32, shape.tokens * shape.heads, false);
  const device::RawBuffer workspace = options.device->allocate(
      std::max(kernels.attention_workspace_bytes(attention), std::uint64_t{256}));
  auto* const log_sums = static_cast<float*>(lse.data());
  // Two products forward, five backward; half of each lies above the diagonal.
  const double product = static_cast<double>(shape.tokens) * static_cast<double>(shape.time) *
                         static_cast<double>(shape.hidden);
  const Job forward{"forward", 2 * product, [&] {
                      kernels.set_stream(stream->native());
                      kernels.attention_forward(attention, qkv.data(), out.data(), log_sums,
                                                workspace.data());
                    }};
  const Job backward{"backward", 5 * product, [&] {
                       kernels.set_stream(stream->native());
                       kernels.attention_backward(attention, dout.data(), qkv.data(), out.data(),
                                                  log_sums, dqkv.data(), workspace.data());
                     }};
  // A training step calls the two one after the other.
  const Job both{"forward_backward", 7 * product, [&] {
                   forward.call();
                   backward.call();
                 }};
  json event = bench_event(options, shape, "attention", *stream, {forward, backward, both});
  event["figures"]["batch"] = batch;
  event["figures"]["time"] = shape.time;
  event["figures"]["heads"] = shape.heads;
  event["figures"]["head_dim"] = attention.head_dim;
  return event;
}

}  // namespace sluice::bench
