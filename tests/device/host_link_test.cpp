// The link model: lower bounds on time only; nothing here asks a machine to be fast.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "device/host/host_device.hpp"
#include "tests/device/soon.hpp"

namespace sluice::device {
namespace {

struct LinkedDevice {
  std::unique_ptr<Device> device;
  std::vector<std::byte> host = std::vector<std::byte>(4 * kMiB);
  RawBuffer memory;

  explicit LinkedDevice(const HostDeviceOptions& options) : device(make_host_device(options)) {
    memory = device->allocate(host.size());
  }
};

std::int64_t elapsed_ns(Device& device, const std::function<void()>& work) {
  const std::int64_t begin_ns = device.now_ns();
  work();
  return device.now_ns() - begin_ns;
}

TEST(HostLink, ACopyTakesLatencyAndBytesOverBandwidth) {
  LinkedDevice s({.link_bandwidth_bytes_per_s = 400e6, .link_latency_s = 2e-3});
  const auto stream = s.device->create_stream("h2d");
  const std::int64_t ns = elapsed_ns(*s.device, [&] {
    stream->copy(s.memory.data(), s.host.data(), s.host.size(), CopyKind::kHostToDevice);
    stream->synchronize(soon());
  });
  EXPECT_GE(ns, static_cast<std::int64_t>(2e6 + 4 * kMiB / 400e6 * 1e9));
}

TEST(HostLink, LatencyAloneCountsPerCopy) {
  LinkedDevice s({.link_latency_s = 1e-3});
  const auto stream = s.device->create_stream("d2h");
  const std::int64_t ns = elapsed_ns(*s.device, [&] {
    for (int i = 0; i < 10; ++i) {
      stream->copy(s.host.data(), s.memory.data(), 16, CopyKind::kDeviceToHost);
    }
    stream->synchronize(soon());
  });
  EXPECT_GE(ns, 10'000'000);
}

TEST(HostLink, StreamsShareADirection) {
  LinkedDevice s({.link_latency_s = 2e-3});
  std::vector<std::unique_ptr<Stream>> streams;
  const std::int64_t ns = elapsed_ns(*s.device, [&] {
    for (int i = 0; i < 4; ++i) {
      streams.push_back(s.device->create_stream(std::string("h2d").append(std::to_string(i))));
      for (int copy = 0; copy < 3; ++copy) {
        streams.back()->copy(s.memory.data() + i * 64, s.host.data(), 64, CopyKind::kHostToDevice);
      }
    }
    for (const auto& stream : streams) stream->synchronize(soon());
  });
  EXPECT_GE(ns, 4 * 3 * 2'000'000);
}

// Each direction has its own link: a copy down is not queued after the copies up. Judged by order,
// not by time: 50 copies up cannot all be done before one copy down that was queued with them.
TEST(HostLink, DirectionsAreIndependent) {
  LinkedDevice s({.link_latency_s = 4e-3});
  const auto up = s.device->create_stream("h2d");
  const auto down = s.device->create_stream("d2h");
  const auto up_done = s.device->create_event();
  const auto down_done = s.device->create_event();
  for (int i = 0; i < 50; ++i) {
    up->copy(s.memory.data(), s.host.data(), 64, CopyKind::kHostToDevice);
  }
  up->record(*up_done);
  down->copy(s.host.data() + 4096, s.memory.data() + 4096, 64, CopyKind::kDeviceToHost);
  down->record(*down_done);
  up_done->synchronize(soon(), "copies up");
  down_done->synchronize(soon(), "copy down");
  EXPECT_LT(down_done->time_ns(), up_done->time_ns());
}

TEST(HostLink, CopiesInsideTheDeviceDoNotUseIt) {
  LinkedDevice s({.link_latency_s = 30.0});  // a copy that used it would outlast the deadline
  const auto stream = s.device->create_stream("compute");
  stream->copy(s.memory.data() + 4096, s.memory.data(), 64, CopyKind::kDeviceToDevice);
  stream->synchronize(Deadline::after_seconds(20));
}

TEST(HostDevice, RefusesOptionsThatMeanNothing) {
  EXPECT_THROW(make_host_device({.capacity_bytes = 0}), InputError);
  EXPECT_THROW(make_host_device({.link_bandwidth_bytes_per_s = -1}), InputError);
  EXPECT_THROW(make_host_device({.link_latency_s = std::nan("")}), InputError);
}

}  // namespace
}  // namespace sluice::device
