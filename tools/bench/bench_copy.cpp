#include "tools/bench/bench_copy.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "allocator/host_mapping.hpp"
#include "base/error.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Host pages, touched and registered with the device.
struct HostArray {
  HostArray(device::Device& device, std::uint64_t bytes)
      : mapping(bytes), registration((touch(), device.register_host(mapping.data(), bytes))) {}
  void touch() { std::memset(mapping.data(), 1, mapping.bytes()); }

  allocator::HostMapping mapping;
  device::HostRegistration registration;
};

class CopyTrial {
 public:
  CopyTrial(device::Device& device, std::uint64_t bytes)
      : bytes_(bytes),
        to_device_{device.create_stream("to device")},
        to_host_{device.create_stream("to host")},
        sent_(device, bytes),
        received_(device, bytes),
        target_(device.allocate(bytes)),
        source_(device.allocate(bytes)) {
    copy_all(true, true, bytes);  // makes all pages exist before the timing
  }

  // Bytes per second, both directions counted.
  double rate(bool to_device, bool to_host, std::uint64_t piece) {
    const auto begin = Clock::now();
    copy_all(to_device, to_host, piece);
    return static_cast<double>(bytes_) * (to_device + to_host) / seconds_since(begin);
  }

  double memcpy_rate() {
    const auto begin = Clock::now();
    std::memcpy(received_.mapping.data(), sent_.mapping.data(), bytes_);
    return static_cast<double>(bytes_) / seconds_since(begin);
  }

 private:
  void copy_all(bool to_device, bool to_host, std::uint64_t piece) {
    for (std::uint64_t at = 0; at < bytes_; at += piece) {
      if (to_device) {
        to_device_->copy(target_.data() + at, sent_.mapping.data() + at, piece,
                         device::CopyKind::kHostToDevice);
      }
      if (to_host) {
        to_host_->copy(received_.mapping.data() + at, source_.data() + at, piece,
                       device::CopyKind::kDeviceToHost);
      }
    }
    const Deadline deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
    to_device_->synchronize(deadline);
    to_host_->synchronize(deadline);
  }

  std::uint64_t bytes_;
  std::unique_ptr<device::Stream> to_device_, to_host_;
  HostArray sent_, received_;
  device::RawBuffer target_, source_;
};

// Seconds of each call for one handle.
struct HandleTimes {
  double create = 0, map = 0, unmap = 0, release = 0;
};

HandleTimes time_handle(device::Device& device, std::uint64_t bytes) {
  const device::AddressRange range = device.reserve(bytes);
  HandleTimes times;
  auto begin = Clock::now();
  device::PhysicalBlock block = device.create_block(bytes);
  times.create = seconds_since(begin);
  begin = Clock::now();
  device::Mapping mapping = device.map(range, 0, block);
  times.map = seconds_since(begin);
  begin = Clock::now();
  mapping = device::Mapping();
  times.unmap = seconds_since(begin);
  begin = Clock::now();
  block = device::PhysicalBlock();
  times.release = seconds_since(begin);
  return times;
}

void check(const CopyBenchOptions& options) {
  SLUICE_CHECK(options.device != nullptr);
  if (options.bytes == 0 || options.bytes % (64 * kMiB) != 0) {
    throw InputError("bench copy: the size must be a multiple of 64MiB");
  }
  if (options.rounds < 7) throw InputError("bench copy: there must be at least 7 rounds");
}

struct Way {
  const char* figure;
  bool to_device, to_host;
};
constexpr std::array<Way, 3> kWays{{{"to_device_gib_per_s", true, false},
                                    {"to_host_gib_per_s", false, true},
                                    {"duplex_gib_per_s", true, true}}};
constexpr std::array<std::pair<const char*, std::uint64_t>, 4> kPieces{
    {{"64KiB", 64 * kKiB}, {"1MiB", kMiB}, {"16MiB", 16 * kMiB}, {"64MiB", 64 * kMiB}}};
constexpr std::array<std::pair<const char*, std::uint64_t>, 3> kHandles{
    {{"2MiB", 2 * kMiB}, {"32MiB", 32 * kMiB}, {"64MiB", 64 * kMiB}}};

// Samples of every figure, by the path of its name.
using Samples = std::map<json::json_pointer, std::vector<double>>;

void measure_round(device::Device& device, CopyTrial& copies, Samples& samples) {
  const auto add = [&samples](const std::string& path, double value) {
    samples[json::json_pointer(path)].push_back(value);
  };
  for (const auto& [name, piece] : kPieces) {
    for (const Way& way : kWays) {
      add("/copies/" + std::string(name) + "/" + way.figure,
          copies.rate(way.to_device, way.to_host, piece) / static_cast<double>(kGiB));
    }
  }
  add("/memcpy_gib_per_s", copies.memcpy_rate() / static_cast<double>(kGiB));
  for (const auto& [name, bytes] : kHandles) {
    const HandleTimes times = time_handle(device, bytes);
    const std::string path = "/handles/" + std::string(name);
    add(path + "/create_us", times.create * 1e6);
    add(path + "/map_us", times.map * 1e6);
    add(path + "/unmap_us", times.unmap * 1e6);
    add(path + "/release_us", times.release * 1e6);
  }
}

}  // namespace

json run_copy_bench(const CopyBenchOptions& options) {
  check(options);
  device::Device& device = *options.device;
  CopyTrial copies(device, options.bytes);
  Samples samples;
  for (int round = 0; round < options.rounds; ++round) measure_round(device, copies, samples);
  json figures{{"backend", device.facts().backend},
               {"device", device.facts().name},
               {"bytes", options.bytes},
               {"rounds", options.rounds}};
  for (auto& [path, values] : samples) figures[path] = median(std::move(values));
  figures["ratio_to_device"] = figures["copies"]["1MiB"]["to_device_gib_per_s"].get<double>() /
                               figures["memcpy_gib_per_s"].get<double>();
  return {{"event", "bench"}, {"name", "copy"}, {"figures", figures}};
}

}  // namespace sluice::bench
