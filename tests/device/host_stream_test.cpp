// The host device's streams: tests that need work which the host can hold up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.hpp"
#include "device/host/host_device.hpp"
#include "tests/device/soon.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::device {
namespace {

Deadline at_once() {
  return Deadline::after_seconds(0.01);
}

// Holds a stream's worker until open() or destruction.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!open_) promise_.set_value();
    open_ = true;
  }
  std::function<void()> pass() {
    return [future = future_] { future.wait_for(std::chrono::seconds(60)); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
  bool open_ = false;
};

TEST(HostStream, AWaitEndsAtItsDeadlineAndNamesItsTarget) {
  const auto device = make_host_device({});
  const auto event = device->create_event();
  Gate gate;
  const auto stream = device->create_stream("compute");
  stream->launch(gate.pass());
  stream->record(*event);
  EXPECT_FALSE(event->done());
  EXPECT_THROW(static_cast<void>(event->time_ns()), InternalError);
  const auto by_stream = testing::message_of<TimeoutError>([&] { stream->synchronize(at_once()); });
  EXPECT_TRUE(testing::mentions(by_stream, "stream 'compute'"));
  const auto by_event =
      testing::message_of<TimeoutError>([&] { event->synchronize(at_once(), "upload of unit 3"); });
  EXPECT_TRUE(testing::mentions(by_event, "upload of unit 3"));
  EXPECT_TRUE(testing::mentions(by_event, "'compute'"));
  gate.open();
  stream->synchronize(soon());  // a timeout is no failure of the stream
  EXPECT_TRUE(event->done());
}

TEST(HostStream, AnEventHoldsBackOnlyWorkAfterTheWait) {
  const auto device = make_host_device({});
  const auto event = device->create_event();
  Gate gate;
  const auto held = device->create_stream("held");
  const auto waiting = device->create_stream("waiting");
  std::atomic<bool> before = false;
  std::atomic<bool> after = false;
  std::atomic<bool> held_done = false;
  held->launch(gate.pass());
  held->launch([&] { held_done = true; });
  held->record(*event);
  waiting->launch([&] { before = true; });
  const auto reached = device->create_event();
  waiting->record(*reached);
  waiting->wait(*event);
  waiting->launch([&] { after = held_done.load(); });
  reached->synchronize(soon(), "work before the wait");
  EXPECT_TRUE(before);
  EXPECT_FALSE(held_done);
  gate.open();
  waiting->synchronize(soon());
  EXPECT_TRUE(after);
}

// A chain of increments that hops between streams, with no synchronisation but events: any missing
// order loses an increment (and is a data race under the thread sanitizer).
TEST(HostStream, EventsOrderPlainMemoryAcrossStreams) {
  constexpr std::size_t kStreams = 4;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto device = make_host_device({});
    const CounterRng rng(seed, stream_of("hops"));
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::size_t i = 0; i < kStreams; ++i) {
      streams.push_back(device->create_stream(std::string("s").append(std::to_string(i))));
    }
    const auto event = device->create_event();  // one event, recorded again and again
    std::uint64_t value = 1;
    std::uint64_t expected = 1;
    for (std::uint64_t hop = 0; hop < 100; ++hop) {
      Stream& stream = *streams[rng.below(hop, kStreams)];
      stream.wait(*event);
      stream.launch([&value, hop] { value = value * 3 + hop; });
      stream.record(*event);
      expected = expected * 3 + hop;
    }
    event->synchronize(soon(), "the last hop");
    ASSERT_EQ(value, expected) << "seed " << seed;
  }
}

TEST(HostStream, AFailureStays) {
  const auto device = make_host_device({});
  const auto stream = device->create_stream("failing");
  int ran = 0;
  stream->launch([&] { ++ran; });
  stream->launch([] { throw IoError("read", "file", 1, 2, 0); });
  EXPECT_THROW(stream->synchronize(soon()), IoError);
  stream->launch([&] { ++ran; });
  stream->launch([] { throw DeviceError("a second failure does not replace the first"); });
  EXPECT_THROW(stream->synchronize(soon()), IoError);
  EXPECT_EQ(ran, 1);
}

TEST(HostStream, WorkMustNotWaitForItsOwnStream) {
  const auto device = make_host_device({});
  const auto stream = device->create_stream("self");
  stream->launch([&] { stream->synchronize(soon()); });
  EXPECT_THROW(stream->synchronize(soon()), InternalError);
}

TEST(HostStream, ACopyHasTwoSeparateEnds) {
  const auto device = make_host_device({});
  const auto stream = device->create_stream("copy");
  const RawBuffer buffer = device->allocate(1024);
  EXPECT_THROW(stream->copy(buffer.data() + 10, buffer.data(), 11, CopyKind::kDeviceToDevice),
               InternalError);
  EXPECT_THROW(stream->copy(nullptr, buffer.data(), 1, CopyKind::kDeviceToHost), InternalError);
  EXPECT_THROW(stream->launch(nullptr), InternalError);
  stream->copy(buffer.data() + 10, buffer.data(), 10, CopyKind::kDeviceToDevice);
  stream->synchronize(soon());
}

// An entry's captures are destroyed before its end is known, so that buffers may be freed then.
TEST(HostStream, ClosuresAreGoneWhenTheStreamIsIdle) {
  const auto device = make_host_device({});
  const auto stream = device->create_stream("closures");
  for (int i = 0; i < 100; ++i) {
    auto owned = std::make_shared<int>(i);
    const std::weak_ptr<int> watch = owned;
    stream->launch([owned = std::move(owned)] { ASSERT_GE(*owned, 0); });
    stream->synchronize(soon());
    ASSERT_TRUE(watch.expired());
  }
}

// More entries than the queue holds: the caller is slowed down, nothing is lost or reordered.
TEST(HostStream, AFullQueueSlowsItsCaller) {
  constexpr std::uint64_t kEntries = 70'000;
  const auto device = make_host_device({});
  std::uint64_t in_order = 0;
  Gate gate;
  std::jthread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  const auto stream = device->create_stream("full");
  stream->launch(gate.pass());
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    stream->launch([&in_order, i] { in_order += in_order == i ? 1 : 0; });
  }
  stream->synchronize(soon());
  EXPECT_EQ(in_order, kEntries);
}

TEST(HostStream, MayOutliveItsDevice) {
  auto device = make_host_device({.detect_races = true});
  const auto stream = device->create_stream("survivor");
  const auto event = device->create_event();
  device.reset();
  bool ran = false;
  stream->launch([&] { ran = true; });
  stream->record(*event);
  event->synchronize(soon(), "work after the device");
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace sluice::device
