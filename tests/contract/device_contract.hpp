// The promises of every Device, typed over a factory. A new device adds a trait and one
// INSTANTIATE_TYPED_TEST_SUITE_P line:
//
//   struct Factory {
//     // A device with this cap, or null where this machine has none.
//     static std::unique_ptr<Device> make(std::uint64_t capacity_bytes);
//     static const char* missing();  // why make() returns null
//   };
//
// The host never touches device memory here: bytes move by copies, and their host ends are plain
// memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "device/device.hpp"
#include "tests/support/aligned_bytes.hpp"
#include "tests/support/thrown.hpp"

namespace sluice {

inline Deadline contract_deadline() {
  return Deadline::after_seconds(60);
}

// Bytes that differ by seed and position.
inline std::vector<std::byte> contract_pattern(std::uint64_t bytes, std::uint64_t seed) {
  const CounterRng rng(seed, stream_of("device_contract"));
  std::vector<std::byte> pattern(bytes);
  for (std::uint64_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = rng.bits(at / 8);
    std::memcpy(pattern.data() + at, &word, std::min<std::uint64_t>(8, bytes - at));
  }
  return pattern;
}

template <typename Factory>
class DeviceContract : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kCapacityBytes = 64 * kMiB;

  void SetUp() override {
    device_ = Factory::make(kCapacityBytes);
    if (device_ == nullptr) GTEST_SKIP() << Factory::missing();
    stream_ = device_->create_stream("contract");
    page_ = device_->facts().granularity_bytes;
  }

  void to_device(void* destination, const void* source, std::uint64_t bytes) {
    stream_->copy(destination, source, bytes, device::CopyKind::kHostToDevice);
  }
  void to_host(void* destination, const void* source, std::uint64_t bytes) {
    stream_->copy(destination, source, bytes, device::CopyKind::kDeviceToHost);
  }
  void upload(std::byte* destination, const std::vector<std::byte>& bytes) {
    to_device(destination, bytes.data(), bytes.size());
    stream_->synchronize(contract_deadline());
  }
  std::vector<std::byte> download(const std::byte* source, std::uint64_t bytes) {
    std::vector<std::byte> result(bytes);
    to_host(result.data(), source, bytes);
    stream_->synchronize(contract_deadline());
    return result;
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::uint64_t page_ = 0;
};

TYPED_TEST_SUITE_P(DeviceContract);

TYPED_TEST_P(DeviceContract, StatesItsFacts) {
  const device::DeviceFacts& facts = this->device_->facts();
  EXPECT_FALSE(facts.backend.empty());
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.capacity_bytes, this->kCapacityBytes);
  EXPECT_GT(facts.granularity_bytes, 0u);
  EXPECT_EQ(facts.granularity_bytes % kTensorAlignmentBytes, 0u);
  const std::int64_t before = this->device_->now_ns();
  EXPECT_LE(before, this->device_->now_ns());
}

TYPED_TEST_P(DeviceContract, CopiesCarryBytesAllWaysAndAreCounted) {
  const auto pattern = contract_pattern(1'000'003, 1);
  const device::RawBuffer first = this->device_->allocate(pattern.size());
  const device::RawBuffer second = this->device_->allocate(pattern.size());
  std::vector<std::byte> result(pattern.size());
  this->to_device(first.data(), pattern.data(), pattern.size());
  this->stream_->copy(second.data(), first.data(), pattern.size(),
                      device::CopyKind::kDeviceToDevice);
  this->to_host(result.data(), second.data(), pattern.size());
  this->to_host(result.data(), second.data(), 0);
  this->stream_->synchronize(contract_deadline());
  EXPECT_EQ(result, pattern);
  for (const std::uint64_t bytes : this->device_->counters().copied_bytes) {
    EXPECT_EQ(bytes, pattern.size());
  }
}

TYPED_TEST_P(DeviceContract, BuffersAreAlignedAndCounted) {
  const device::DeviceCounters before = this->device_->counters();
  {
    std::vector<device::RawBuffer> buffers;
    std::uint64_t total_bytes = 0;
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{255}, std::uint64_t{4097}}) {
      buffers.push_back(this->device_->allocate(bytes));
      total_bytes += bytes;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % kTensorAlignmentBytes,
                0u);
      EXPECT_EQ(buffers.back().bytes(), bytes);
    }
    const device::DeviceCounters during = this->device_->counters();
    EXPECT_GE(during.live_bytes, before.live_bytes + total_bytes);
    EXPECT_EQ(during.allocation_calls, before.allocation_calls + 3);
  }
  const device::DeviceCounters after = this->device_->counters();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_GE(after.peak_bytes, before.live_bytes + 1 + 255 + 4097);
  EXPECT_THROW(this->device_->allocate(0), InternalError);
}

TYPED_TEST_P(DeviceContract, TheCapIsHardForBlocksAndBuffersTogether) {
  device::RawBuffer buffer = this->device_->allocate(this->kCapacityBytes / 2);
  const device::PhysicalBlock block = this->device_->create_block(this->kCapacityBytes / 2);
  const device::DeviceCounters full = this->device_->counters();
  EXPECT_EQ(full.live_bytes, this->kCapacityBytes);
  const auto error =
      testing::thrown_by<OutOfMemory>([&] { this->device_->create_block(this->page_); });
  EXPECT_EQ(error.tier, Tier::kDevice);
  EXPECT_EQ(error.requested_bytes, this->page_);
  EXPECT_EQ(error.available_bytes, 0u);
  EXPECT_THROW(this->device_->allocate(1), OutOfMemory);
  EXPECT_THROW(this->device_->allocate(~std::uint64_t{0}), OutOfMemory);
  EXPECT_EQ(this->device_->counters().live_bytes, full.live_bytes);
  EXPECT_EQ(this->device_->counters().allocation_calls, full.allocation_calls);
  buffer = device::RawBuffer();
  EXPECT_EQ(this->device_->counters().live_bytes, this->kCapacityBytes / 2);
  buffer = this->device_->allocate(this->kCapacityBytes / 2);
  EXPECT_EQ(this->device_->counters().peak_bytes, this->kCapacityBytes);
}

TYPED_TEST_P(DeviceContract, AddressesCostNoMemory) {
  const device::AddressRange range = this->device_->reserve(16 * this->kCapacityBytes);
  EXPECT_EQ(this->device_->counters().live_bytes, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.data()) % this->page_, 0u);
  EXPECT_EQ(range.bytes(), 16 * this->kCapacityBytes);
  EXPECT_THROW(this->device_->reserve(this->page_ + 1), InternalError);
  EXPECT_THROW(this->device_->reserve(0), InternalError);
  EXPECT_THROW(this->device_->create_block(this->page_ / 2), InternalError);
  EXPECT_THROW(this->device_->create_block(0), InternalError);
}

TYPED_TEST_P(DeviceContract, ABlockKeepsItsBytesWhenItMoves) {
  const device::AddressRange range = this->device_->reserve(4 * this->page_);
  const device::PhysicalBlock block = this->device_->create_block(this->page_);
  const auto pattern = contract_pattern(this->page_, 2);
  {
    const device::Mapping mapping = this->device_->map(range, 0, block);
    EXPECT_EQ(mapping.data(), range.data());
    EXPECT_EQ(mapping.bytes(), this->page_);
    this->upload(mapping.data(), pattern);
  }
  const device::Mapping moved = this->device_->map(range, 3 * this->page_, block);
  EXPECT_EQ(moved.data(), range.data() + 3 * this->page_);
  EXPECT_EQ(this->download(moved.data(), this->page_), pattern);
  EXPECT_EQ(this->device_->counters().map_calls, 2u);
}

TYPED_TEST_P(DeviceContract, AliasesShowTheSameBytes) {
  const device::AddressRange low = this->device_->reserve(this->page_);
  const device::AddressRange high = this->device_->reserve(2 * this->page_);
  const device::PhysicalBlock block = this->device_->create_block(this->page_);
  const device::Mapping first = this->device_->map(low, 0, block);
  const device::Mapping second = this->device_->map(high, this->page_, block);
  const auto pattern = contract_pattern(this->page_, 3);
  this->upload(first.data(), pattern);
  EXPECT_EQ(this->download(second.data(), this->page_), pattern);
  EXPECT_EQ(this->device_->counters().live_bytes, this->page_);  // two views, one memory
}

TYPED_TEST_P(DeviceContract, ScatteredBlocksMakeOneContiguousRange) {
  constexpr std::uint64_t kPages = 6;
  const device::AddressRange range = this->device_->reserve(kPages * this->page_);
  std::vector<device::PhysicalBlock> blocks;
  std::vector<device::Mapping> mappings;
  for (std::uint64_t i = 0; i < kPages / 2; ++i) {
    blocks.push_back(this->device_->create_block((i + 1) * this->page_));  // 1, 2, 3 pages
  }
  // Backwards, so that neighbours in the range are none in memory.
  std::uint64_t end = kPages * this->page_;
  for (const device::PhysicalBlock& block : blocks) {
    end -= block.bytes();
    mappings.push_back(this->device_->map(range, end, block));
  }
  ASSERT_EQ(end, 0u);
  const auto pattern = contract_pattern(kPages * this->page_ - 77, 4);
  this->upload(range.data() + 77, pattern);
  EXPECT_EQ(this->download(range.data() + 77, pattern.size()), pattern);
}

TYPED_TEST_P(DeviceContract, MapRefusesAWrongPlaceAndChangesNothing) {
  const device::AddressRange range = this->device_->reserve(4 * this->page_);
  const device::PhysicalBlock one = this->device_->create_block(this->page_);
  const device::PhysicalBlock two = this->device_->create_block(2 * this->page_);
  device::Mapping middle = this->device_->map(range, 2 * this->page_, one);
  const auto pattern = contract_pattern(this->page_, 5);
  this->upload(middle.data(), pattern);
  EXPECT_THROW(this->device_->map(range, this->page_ / 2, one), InternalError);
  EXPECT_THROW(this->device_->map(range, 4 * this->page_, one), InternalError);
  EXPECT_THROW(this->device_->map(range, 3 * this->page_, two), InternalError);
  EXPECT_THROW(this->device_->map(range, ~std::uint64_t{0} - this->page_ + 1, one), InternalError);
  EXPECT_THROW(this->device_->map(range, 2 * this->page_, one), InternalError);
  EXPECT_THROW(this->device_->map(range, this->page_, two), InternalError);
  EXPECT_EQ(this->download(middle.data(), this->page_), pattern);
  const device::Mapping before = this->device_->map(range, 0, two);
  const device::Mapping after = this->device_->map(range, 3 * this->page_, one);
  EXPECT_EQ(this->download(after.data(), this->page_), pattern);
  // A place is free again once its mapping is gone.
  middle = device::Mapping();
  const device::Mapping again = this->device_->map(range, 2 * this->page_, one);
  EXPECT_EQ(this->download(again.data(), this->page_), pattern);
}

TYPED_TEST_P(DeviceContract, HandlesMoveWithoutReleasing) {
  device::RawBuffer first = this->device_->allocate(1024);
  std::byte* const data = first.data();
  device::RawBuffer second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): a moved-from handle is empty
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(this->device_->counters().live_bytes, 1024u);
  second = this->device_->allocate(2048);  // releases its old buffer
  EXPECT_EQ(this->device_->counters().live_bytes, 2048u);
}

TYPED_TEST_P(DeviceContract, HostPagesAreRegisteredOnce) {
  constexpr std::uint64_t kBytes = 1 << 20;
  const testing::AlignedBytes pages(kBytes);
  std::memset(pages.at(), 7, kBytes);
  {
    const device::HostRegistration registration = this->device_->register_host(pages.at(), kBytes);
    EXPECT_EQ(registration.data(), pages.at());
    EXPECT_EQ(this->device_->counters().registration_calls, 1u);
    EXPECT_EQ(this->device_->counters().peak_registered_bytes, kBytes);
    EXPECT_THROW(this->device_->register_host(pages.at(4096), 4096), InternalError);
    const device::RawBuffer buffer = this->device_->allocate(kBytes);
    this->to_device(buffer.data(), pages.at(), kBytes);
    EXPECT_EQ(this->download(buffer.data(), kBytes), std::vector<std::byte>(kBytes, std::byte{7}));
  }
  EXPECT_THROW(this->device_->register_host(pages.at(8), 4096), InternalError);
  EXPECT_THROW(this->device_->register_host(pages.at(), 0), InternalError);
  const device::HostRegistration again = this->device_->register_host(pages.at(), kBytes);
  EXPECT_EQ(this->device_->counters().registration_calls, 2u);
  EXPECT_EQ(this->device_->counters().peak_registered_bytes, kBytes);
}

// A large region is registered in pieces; callers that copy do not know where those end.
TYPED_TEST_P(DeviceContract, ACopyMayCrossAdjoiningRegistrations) {
  constexpr std::uint64_t kPieceBytes = 64 * kKiB;
  constexpr std::uint64_t kBytes = 3 * kPieceBytes;
  const testing::AlignedBytes pages(kBytes);
  const auto pattern = contract_pattern(kBytes, 11);
  std::memcpy(pages.at(), pattern.data(), kBytes);
  std::vector<device::HostRegistration> registrations;
  for (std::uint64_t offset = 0; offset < kBytes; offset += kPieceBytes) {
    registrations.push_back(this->device_->register_host(pages.at(offset), kPieceBytes));
  }
  const device::RawBuffer buffer = this->device_->allocate(kBytes);
  this->to_device(buffer.data(), pages.at(), kBytes);
  EXPECT_EQ(this->download(buffer.data(), kBytes), pattern);
  std::memset(pages.at(), 0, kBytes);
  // Begins and ends inside a piece, two borders between.
  const std::uint64_t begin = kPieceBytes - 256;
  const std::uint64_t bytes = kPieceBytes + 512;
  this->to_host(pages.at(begin), buffer.data() + begin, bytes);
  this->stream_->synchronize(contract_deadline());
  EXPECT_EQ(std::memcmp(pages.at(begin), pattern.data() + begin, bytes), 0);
  EXPECT_EQ(this->device_->counters().peak_registered_bytes, kBytes);
}

TYPED_TEST_P(DeviceContract, AStreamRunsInOrder) {
  constexpr int kEntries = 200;
  constexpr std::uint64_t kBytes = 4096;
  const device::RawBuffer buffer = this->device_->allocate(kBytes);
  std::vector<std::vector<std::byte>> sources;
  std::vector<std::vector<std::byte>> results(kEntries, std::vector<std::byte>(kBytes));
  std::vector<int> launched;
  for (int i = 0; i < kEntries; ++i) sources.push_back(contract_pattern(kBytes, 100 + i));
  for (int i = 0; i < kEntries; ++i) {
    this->to_device(buffer.data(), sources[i].data(), kBytes);
    this->stream_->launch([&launched, i] { launched.push_back(i); });
    this->to_host(results[i].data(), buffer.data(), kBytes);
  }
  this->stream_->synchronize(contract_deadline());
  EXPECT_EQ(results, sources);
  std::vector<int> expected(kEntries);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(launched, expected);
}

TYPED_TEST_P(DeviceContract, DestroyingAStreamDrainsIt) {
  const auto pattern = contract_pattern(8 * kMiB, 6);
  const device::RawBuffer buffer = this->device_->allocate(pattern.size());
  auto passing = this->device_->create_stream("passing");
  const auto event = this->device_->create_event();
  passing->copy(buffer.data(), pattern.data(), pattern.size(), device::CopyKind::kHostToDevice);
  passing->record(*event);
  passing.reset();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(this->download(buffer.data(), pattern.size()), pattern);
}

// The host program's queue goes on when its wrapper is gone.
TYPED_TEST_P(DeviceContract, AWrappedStreamTakesPartInTheOrder) {
  const auto pattern = contract_pattern(1 * kMiB, 7);
  const device::RawBuffer buffer = this->device_->allocate(pattern.size());
  const auto event = this->device_->create_event();
  const auto follower = this->device_->create_stream("follower");
  auto wrapped = this->device_->wrap_stream(this->stream_->native(), "wrapped");
  wrapped->copy(buffer.data(), pattern.data(), pattern.size(), device::CopyKind::kHostToDevice);
  wrapped->record(*event);
  follower->wait(*event);
  std::vector<std::byte> found(pattern.size());
  follower->copy(found.data(), buffer.data(), found.size(), device::CopyKind::kDeviceToHost);
  follower->record(*event);
  wrapped->wait(*event);
  wrapped->synchronize(contract_deadline());
  EXPECT_EQ(found, pattern);
  wrapped.reset();
  EXPECT_EQ(this->download(buffer.data(), pattern.size()), pattern);
}

TYPED_TEST_P(DeviceContract, AFailureStaysWithAWrappedStream) {
  const auto wrapped = this->device_->wrap_stream(this->stream_->native(), "wrapped");
  bool ran_after = false;
  wrapped->launch([] { throw std::runtime_error("not even one of ours"); });
  wrapped->launch([&] { ran_after = true; });
  EXPECT_THROW(wrapped->synchronize(contract_deadline()), std::runtime_error);
  EXPECT_FALSE(ran_after);
}

TYPED_TEST_P(DeviceContract, AnUnrecordedEventHoldsNothingUp) {
  const std::uint64_t before = this->device_->counters().created_events;
  const auto event = this->device_->create_event();
  EXPECT_EQ(this->device_->counters().created_events, before + 1);
  EXPECT_TRUE(event->done());
  event->synchronize(contract_deadline(), "nothing");
  this->stream_->wait(*event);
  this->stream_->synchronize(contract_deadline());
  EXPECT_THROW(static_cast<void>(event->time_ns()), InternalError);
}

TYPED_TEST_P(DeviceContract, EventTimesFollowTheStream) {
  const auto first = this->device_->create_event();
  const auto second = this->device_->create_event();
  const auto pattern = contract_pattern(4 * kMiB, 7);
  const device::RawBuffer buffer = this->device_->allocate(pattern.size());
  const std::int64_t before = this->device_->now_ns();
  this->stream_->record(*first);
  this->to_device(buffer.data(), pattern.data(), pattern.size());
  this->stream_->record(*second);
  second->synchronize(contract_deadline(), "the second event");
  const std::int64_t after = this->device_->now_ns();
  EXPECT_TRUE(first->done());
  // A device may keep a clock of its own and translate; that much it may be off.
  constexpr std::int64_t kSkewNs = 10'000'000;
  EXPECT_LE(before - kSkewNs, first->time_ns());
  EXPECT_LT(first->time_ns(), second->time_ns());
  EXPECT_LE(second->time_ns(), after + kSkewNs);
}

TYPED_TEST_P(DeviceContract, RecordingAgainReplacesThePoint) {
  const auto event = this->device_->create_event();
  this->stream_->record(*event);
  event->synchronize(contract_deadline(), "the first point");
  const std::int64_t first_ns = event->time_ns();
  const auto pattern = contract_pattern(4 * kMiB, 8);
  const device::RawBuffer buffer = this->device_->allocate(pattern.size());
  this->to_device(buffer.data(), pattern.data(), pattern.size());
  this->stream_->record(*event);
  event->synchronize(contract_deadline(), "the second point");
  EXPECT_GT(event->time_ns(), first_ns);
}

// If wait() looked at the event when it runs, the two streams would wait for each other for ever.
TYPED_TEST_P(DeviceContract, WaitMeansThePointOfTheTimeOfTheCall) {
  const auto other = this->device_->create_stream("other");
  const auto event = this->device_->create_event();
  const auto other_done = this->device_->create_event();
  this->stream_->record(*event);
  other->wait(*event);
  other->record(*other_done);
  this->stream_->wait(*other_done);
  this->stream_->record(*event);
  event->synchronize(contract_deadline(), "the later point");
  other->synchronize(contract_deadline());
}

// Copies among a few buffers on several streams, ordered by the fewest events that are enough, give
// the same bytes as those copies one after the other.
TYPED_TEST_P(DeviceContract, EventsOrderStreamsUnderManySeeds) {
  constexpr std::size_t kStreams = 3;
  constexpr std::size_t kBuffers = 5;
  constexpr std::uint64_t kBytes = 64 * kKiB;
  constexpr int kSteps = 60;
  std::vector<std::unique_ptr<device::Stream>> streams;
  std::vector<device::RawBuffer> buffers;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(this->device_->create_stream(std::string("s").append(std::to_string(i))));
  }
  for (std::size_t i = 0; i < kBuffers; ++i) buffers.push_back(this->device_->allocate(kBytes));

  struct Users {
    std::size_t writer_stream = 0;
    std::unique_ptr<device::Event> written;                                     // null: not yet
    std::vector<std::pair<std::size_t, std::unique_ptr<device::Event>>> reads;  // since the write
  };
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    const CounterRng rng(seed, stream_of("event_order"));
    std::uint64_t draw = 0;
    std::vector<std::vector<std::byte>> sources;
    std::vector<std::size_t> model(kBuffers, 0);  // which source each buffer holds
    std::vector<Users> users(kBuffers);
    for (std::size_t i = 0; i < kBuffers; ++i) {
      sources.push_back(contract_pattern(kBytes, 1000 * seed + i));
    }
    auto write_to = [&](std::size_t stream, std::size_t buffer, const void* from,
                        device::CopyKind kind) {
      Users& use = users[buffer];
      if (use.written && use.writer_stream != stream) streams[stream]->wait(*use.written);
      for (const auto& [reader, event] : use.reads) {
        if (reader != stream) streams[stream]->wait(*event);
      }
      streams[stream]->copy(buffers[buffer].data(), from, kBytes, kind);
      use.reads.clear();
      use.writer_stream = stream;
      use.written = this->device_->create_event();
      streams[stream]->record(*use.written);
    };
    for (std::size_t i = 0; i < kBuffers; ++i) {
      write_to(rng.below(draw++, kStreams), i, sources[i].data(), device::CopyKind::kHostToDevice);
      model[i] = i;
    }
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t stream = rng.below(draw++, kStreams);
      const std::size_t from = rng.below(draw++, kBuffers);
      const std::size_t to = (from + 1 + rng.below(draw++, kBuffers - 1)) % kBuffers;
      if (rng.below(draw++, 8) == 0) {  // fresh bytes now and then, lest all become the same
        write_to(stream, to, sources[to].data(), device::CopyKind::kHostToDevice);
        model[to] = to;
        continue;
      }
      if (users[from].writer_stream != stream) streams[stream]->wait(*users[from].written);
      write_to(stream, to, buffers[from].data(), device::CopyKind::kDeviceToDevice);
      auto read = this->device_->create_event();
      streams[stream]->record(*read);
      users[from].reads.emplace_back(stream, std::move(read));
      model[to] = model[from];
    }
    for (const auto& stream : streams) stream->synchronize(contract_deadline());
    for (std::size_t i = 0; i < kBuffers; ++i) {
      ASSERT_EQ(this->download(buffers[i].data(), kBytes), sources[model[i]])
          << "seed " << seed << ", buffer " << i;
    }
  }
}

TYPED_TEST_P(DeviceContract, AFailurePoisonsItsStreamOnly) {
  const auto healthy = this->device_->create_stream("healthy");
  const auto earlier = this->device_->create_event();
  const auto later = this->device_->create_event();
  const auto old_bytes = contract_pattern(4096, 9);
  const auto new_bytes = contract_pattern(4096, 10);
  const device::RawBuffer buffer = this->device_->allocate(4096);
  healthy->copy(buffer.data(), old_bytes.data(), 4096, device::CopyKind::kHostToDevice);
  healthy->synchronize(contract_deadline());

  bool ran_after = false;
  this->stream_->record(*earlier);
  this->stream_->launch([] { throw DeviceError("deliberate"); });
  this->to_device(buffer.data(), new_bytes.data(), 4096);
  this->stream_->launch([&] { ran_after = true; });
  this->stream_->record(*later);
  const std::string message = testing::message_of<DeviceError>(
      [&] { later->synchronize(contract_deadline(), "the later event"); });
  EXPECT_TRUE(testing::mentions(message, "deliberate"));
  EXPECT_TRUE(later->done());
  earlier->synchronize(contract_deadline(), "an event before the failure");
  EXPECT_THROW(this->stream_->synchronize(contract_deadline()), DeviceError);
  EXPECT_FALSE(ran_after);

  std::vector<std::byte> result(4096);
  healthy->copy(result.data(), buffer.data(), 4096, device::CopyKind::kDeviceToHost);
  healthy->synchronize(contract_deadline());
  EXPECT_EQ(result, old_bytes);  // the copy after the failure was dropped
}

TYPED_TEST_P(DeviceContract, AFailureFollowsTheEventsThatCarryIt) {
  const auto follower = this->device_->create_stream("follower");
  const auto event = this->device_->create_event();
  bool ran_after = false;
  this->stream_->launch([] { throw std::runtime_error("not even one of ours"); });
  this->stream_->record(*event);
  follower->wait(*event);
  follower->launch([&] { ran_after = true; });
  EXPECT_THROW(follower->synchronize(contract_deadline()), std::runtime_error);
  EXPECT_FALSE(ran_after);
}

REGISTER_TYPED_TEST_SUITE_P(DeviceContract, StatesItsFacts, CopiesCarryBytesAllWaysAndAreCounted,
                            BuffersAreAlignedAndCounted, TheCapIsHardForBlocksAndBuffersTogether,
                            AddressesCostNoMemory, ABlockKeepsItsBytesWhenItMoves,
                            AliasesShowTheSameBytes, ScatteredBlocksMakeOneContiguousRange,
                            MapRefusesAWrongPlaceAndChangesNothing, HandlesMoveWithoutReleasing,
                            HostPagesAreRegisteredOnce, ACopyMayCrossAdjoiningRegistrations,
                            AStreamRunsInOrder, DestroyingAStreamDrainsIt,
                            AWrappedStreamTakesPartInTheOrder, AFailureStaysWithAWrappedStream,
                            AnUnrecordedEventHoldsNothingUp, EventTimesFollowTheStream,
                            RecordingAgainReplacesThePoint, WaitMeansThePointOfTheTimeOfTheCall,
                            EventsOrderStreamsUnderManySeeds, AFailurePoisonsItsStreamOnly,
                            AFailureFollowsTheEventsThatCarryIt);

}  // namespace sluice
