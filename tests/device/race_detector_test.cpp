// The detector finds races and leaves race-free programs alone. The queued work is empty: only the
// memory that it declares matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.hpp"
#include "device/host/host_device.hpp"
#include "tests/device/soon.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::device {
namespace {

void touch(Stream& stream, const MemoryAccess& access) {
  stream.launch([] {}, {&access, 1});
}

std::string race_of(Stream& stream) {
  return testing::refusal_of<DeviceError>([&] { stream.synchronize(soon()); });
}

class RaceTest : public ::testing::Test {
 protected:
  void read(Stream& stream, std::uint64_t begin, std::uint64_t end) {
    touch(stream, {buffer_.data() + begin, end - begin, false});
  }
  void write(Stream& stream, std::uint64_t begin, std::uint64_t end) {
    touch(stream, {buffer_.data() + begin, end - begin, true});
  }

  std::unique_ptr<Device> device_ = make_host_device({.detect_races = true});
  RawBuffer buffer_ = device_->allocate(4096);
  std::unique_ptr<Stream> a_ = device_->create_stream("alpha");
  std::unique_ptr<Stream> b_ = device_->create_stream("beta");
  std::unique_ptr<Stream> c_ = device_->create_stream("gamma");
  std::unique_ptr<Event> event_ = device_->create_event();
};

TEST_F(RaceTest, AReadBesideAWriteIsFoundAndDescribed) {
  write(*a_, 0, 1024);
  read(*b_, 512, 2048);
  const std::string race = race_of(*b_);
  EXPECT_TRUE(testing::mentions(race, "stream 'beta' reads"));
  EXPECT_TRUE(testing::mentions(race, "stream 'alpha' writes"));
  std::array<char, 64> range{};
  const auto base = reinterpret_cast<std::uintptr_t>(buffer_.data());
  std::snprintf(range.data(), range.size(), "[0x%llx, 0x%llx)",
                static_cast<unsigned long long>(base) + 512,
                static_cast<unsigned long long>(base + 1024));
  EXPECT_TRUE(testing::mentions(race, range.data()));
  EXPECT_EQ(race_of(*a_), "");  // only the stream that came second is blamed
}

TEST_F(RaceTest, AWriteBesideAReadOrAWriteIsFound) {
  read(*a_, 0, 100);
  write(*b_, 99, 100);
  EXPECT_NE(race_of(*b_), "");
  write(*a_, 200, 300);
  write(*c_, 299, 400);
  EXPECT_NE(race_of(*c_), "");
}

TEST_F(RaceTest, ReadsAndNeighboursAreFree) {
  read(*a_, 0, 100);
  read(*b_, 0, 100);
  write(*a_, 100, 200);
  write(*b_, 200, 300);
  read(*c_, 300, 300);  // empty
  EXPECT_EQ(race_of(*a_) + race_of(*b_) + race_of(*c_), "");
}

TEST_F(RaceTest, AnEventOrders) {
  write(*a_, 0, 100);
  a_->record(*event_);
  b_->wait(*event_);
  write(*b_, 0, 100);
  const auto second = device_->create_event();
  b_->record(*second);
  c_->wait(*second);  // after beta, hence after alpha
  read(*c_, 0, 100);
  EXPECT_EQ(race_of(*a_) + race_of(*b_) + race_of(*c_), "");
}

// Once recorded too early; then again, after the wait.
TEST_F(RaceTest, AnEventDoesNotOrderWorkBehindIt) {
  a_->record(*event_);
  write(*a_, 0, 100);
  b_->wait(*event_);
  c_->wait(*event_);
  read(*b_, 0, 100);
  a_->record(*event_);
  read(*c_, 0, 100);
  EXPECT_NE(race_of(*b_), "");
  EXPECT_NE(race_of(*c_), "");
}

TEST_F(RaceTest, AForgottenReaderIsFoundBehindALaterOne) {
  read(*a_, 0, 100);
  read(*b_, 0, 100);
  b_->record(*event_);
  c_->wait(*event_);
  write(*c_, 0, 100);  // ordered after beta's read, not after alpha's
  const std::string race = race_of(*c_);
  EXPECT_TRUE(testing::mentions(race, "'alpha' reads"));
}

// An access to a part leaves the knowledge of the rest as it was.
TEST_F(RaceTest, APartDoesNotHideTheRest) {
  write(*a_, 0, 300);
  a_->record(*event_);
  b_->wait(*event_);
  write(*b_, 100, 200);
  const auto d = device_->create_stream("delta");
  read(*c_, 50, 100);
  read(*d, 200, 250);
  EXPECT_TRUE(testing::mentions(race_of(*c_), "'alpha' writes"));
  EXPECT_TRUE(testing::mentions(race_of(*d), "'alpha' writes"));

  read(*a_, 1000, 1300);
  read(*b_, 1100, 1200);
  const auto after_alpha = device_->create_event();
  a_->record(*after_alpha);
  const auto e = device_->create_stream("epsilon");
  e->wait(*after_alpha);
  write(*e, 1000, 1100);  // beta read only the bytes between
  write(*e, 1200, 1300);
  EXPECT_EQ(race_of(*e), "");

  write(*a_, 2000, 2300);
  const auto after_write = device_->create_event();
  a_->record(*after_write);
  b_->wait(*after_write);
  read(*b_, 2100, 2200);  // its own place in alpha's bytes
  const auto f = device_->create_stream("zeta");
  read(*f, 2150, 2160);
  EXPECT_TRUE(testing::mentions(race_of(*f), "'alpha' writes"));
}

TEST_F(RaceTest, WorkThatTheHostKnowsToBeDoneIsOrdered) {
  write(*a_, 0, 100);
  a_->synchronize(soon());
  write(*b_, 0, 100);
  b_->record(*event_);
  event_->synchronize(soon(), "beta");
  write(*c_, 0, 100);
  const auto polled = device_->create_event();
  c_->record(*polled);
  const Deadline deadline = soon();
  while (!polled->done() && !deadline.passed()) std::this_thread::yield();
  write(*a_, 0, 100);
  a_->synchronize(soon());
  auto passing = device_->create_stream("passing");
  write(*passing, 0, 100);
  passing.reset();  // drained
  write(*a_, 0, 100);
  EXPECT_EQ(race_of(*a_) + race_of(*b_) + race_of(*c_), "");
}

TEST_F(RaceTest, CopiesTouchBothEnds) {
  std::vector<std::byte> host(256);
  a_->copy(buffer_.data(), host.data(), 256, CopyKind::kHostToDevice);
  b_->copy(host.data(), buffer_.data() + 1024, 256, CopyKind::kDeviceToHost);
  const std::string race = race_of(*b_);  // overwrites the source of the copy above
  EXPECT_TRUE(testing::mentions(race, "'alpha' reads"));
  read(*c_, 0, 256);
  EXPECT_TRUE(testing::mentions(race_of(*c_), "'alpha' writes"));
  EXPECT_EQ(race_of(*a_), "");  // and `host` must outlive the copy
}

TEST_F(RaceTest, ARacingEntryDoesNotRun) {
  write(*a_, 0, 100);
  bool ran = false;
  const MemoryAccess access{buffer_.data(), 100, true};
  b_->launch([&] { ran = true; }, {&access, 1});
  EXPECT_NE(race_of(*b_), "");
  EXPECT_FALSE(ran);
}

TEST_F(RaceTest, AliasesAreOneMemory) {
  const AddressRange range = device_->reserve(3 * kPageBytes);
  const PhysicalBlock block = device_->create_block(kPageBytes);
  const PhysicalBlock other = device_->create_block(kPageBytes);
  const Mapping low = device_->map(range, 0, block);
  const Mapping middle = device_->map(range, kPageBytes, other);
  const Mapping high = device_->map(range, 2 * kPageBytes, block);
  touch(*a_, {low.data() + 100, 50, true});
  touch(*b_, {middle.data() + 100, 50, true});
  touch(*c_, {high.data() + 149, 1, true});
  EXPECT_EQ(race_of(*b_), "");
  EXPECT_TRUE(testing::mentions(race_of(*c_), "'alpha' writes"));
}

// An address with other memory behind it is other memory.
TEST_F(RaceTest, RemappedAddressesAreOtherMemory) {
  const AddressRange range = device_->reserve(kPageBytes);
  const PhysicalBlock first = device_->create_block(kPageBytes);
  const PhysicalBlock second = device_->create_block(kPageBytes);
  const MemoryAccess access{range.data(), 64, true};
  touch(*a_, access);
  EXPECT_TRUE(testing::mentions(race_of(*a_), "nothing is mapped"));
  {
    const Mapping mapping = device_->map(range, 0, first);
    touch(*b_, access);
  }
  const Mapping mapping = device_->map(range, 0, second);
  touch(*c_, access);
  EXPECT_EQ(race_of(*b_) + race_of(*c_), "");
}

TEST_F(RaceTest, TheHostIsCheckedToo) {
  device_->check_host_access(buffer_.data(), 4096, true);
  write(*a_, 0, 100);
  a_->record(*event_);
  EXPECT_THROW(device_->check_host_access(buffer_.data() + 99, 1, false), DeviceError);
  device_->check_host_access(buffer_.data() + 100, 1, true);
  event_->synchronize(soon(), "alpha");
  device_->check_host_access(buffer_.data(), 4096, true);
  read(*b_, 0, 100);
  device_->check_host_access(buffer_.data(), 100, false);
  EXPECT_THROW(device_->check_host_access(buffer_.data(), 100, true), DeviceError);
  b_->synchronize(soon());
  device_->check_host_access(buffer_.data(), 100, true);
}

TEST(RaceDetectionOff, ReportsNothing) {
  const auto device = make_host_device({});
  const RawBuffer buffer = device->allocate(64);
  const auto a = device->create_stream("a");
  const auto b = device->create_stream("b");
  const MemoryAccess access{buffer.data(), 64, true};
  touch(*a, access);
  touch(*b, access);
  device->check_host_access(buffer.data(), 64, true);
  a->synchronize(soon());
  b->synchronize(soon());
}

// Random programs, judged by an independent oracle: reachability in the graph of entries.
struct Program {
  static constexpr std::size_t kStreams = 4;
  static constexpr std::size_t kEntries = 40;
  static constexpr std::uint64_t kBytes = 64;

  struct Entry {
    std::size_t stream;
    std::uint64_t begin;
    std::uint64_t end;
    bool writes;
    std::bitset<kEntries> after;  // all that is ordered before it
  };

  // How often an entry waits for the last entry of another stream, of 16.
  Program(std::uint64_t seed, std::uint64_t wait_rate)
      : rng(seed, stream_of("race_programs")), wait_rate_of_16(wait_rate) {}

  // Queues the program; returns whether the oracle knows a race in it.
  bool run(const std::vector<std::unique_ptr<Stream>>& streams, Device& device, std::byte* memory) {
    std::vector<std::unique_ptr<Event>> events;
    std::array<std::bitset<kEntries>, kStreams> known;
    std::vector<Entry> entries;
    for (std::size_t i = 0; i < kEntries; ++i) {
      const std::size_t stream = draw(kStreams);
      for (std::size_t earlier = 0; earlier < i; ++earlier) {
        if (draw(16 * kStreams) >= wait_rate_of_16) continue;
        streams[stream]->wait(*events[earlier]);
        known[stream] |= entries[earlier].after;
        known[stream].set(earlier);
      }
      const std::uint64_t begin = draw(kBytes);
      // Short enough that many pairs do not touch.
      const std::uint64_t end = begin + 1 + draw(std::min<std::uint64_t>(kBytes - begin, 16));
      Entry entry{stream, begin, end, draw(3) == 0, known[stream]};
      touch(*streams[stream], {memory + entry.begin, entry.end - entry.begin, entry.writes});
      known[stream].set(i);
      events.push_back(device.create_event());
      streams[stream]->record(*events.back());
      entries.push_back(entry);
    }
    return has_race(entries);
  }

  static bool has_race(const std::vector<Entry>& entries) {
    for (std::size_t later = 0; later < entries.size(); ++later) {
      for (std::size_t earlier = 0; earlier < later; ++earlier) {
        const Entry& x = entries[earlier];
        const Entry& y = entries[later];
        const bool overlap = x.begin < y.end && y.begin < x.end;
        if (overlap && (x.writes || y.writes) && !y.after.test(earlier)) return true;
      }
    }
    return false;
  }

  std::uint64_t draw(std::uint64_t bound) { return rng.below(next++, bound); }

  CounterRng rng;
  std::uint64_t wait_rate_of_16;
  std::uint64_t next = 0;
};

TEST(RaceDetection, AgreesWithReachabilityOnRandomPrograms) {
  int racy = 0;
  int clean = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto device = make_host_device({.detect_races = true});
    const RawBuffer buffer = device->allocate(Program::kBytes);
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::size_t i = 0; i < Program::kStreams; ++i) {
      streams.push_back(device->create_stream(std::string("s").append(std::to_string(i))));
    }
    Program program(seed, seed % 3 == 0 ? 64 : 4 + seed % 60);
    const bool expected = program.run(streams, *device, buffer.data());
    std::string found;
    for (const auto& stream : streams) found += race_of(*stream);
    ASSERT_EQ(!found.empty(), expected) << "seed " << seed;
    (expected ? racy : clean) += 1;
  }
  // Both sorts must occur, or the comparison says nothing.
  EXPECT_GT(racy, 30);
  EXPECT_GT(clean, 30);
}

}  // namespace
}  // namespace sluice::device
