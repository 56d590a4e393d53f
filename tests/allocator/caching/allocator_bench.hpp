// A caching allocator over a device (the host's with race detection), and callers that mark their
// blocks. Work queued on a block's stream fills it with a number of its own, and reads that back
// before the block is freed. A block that overlaps another, or is reused too early, is a race or a
// wrong number; synchronize() throws either.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching/caching_allocator.hpp"
#include "base/rng.hpp"
#include "tests/allocator/caching/devices_under_test.hpp"
#include "tests/support/failing_device.hpp"

namespace sluice::allocator {

// A block that its caller holds.
struct MarkedBlock {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;  // as asked
  StreamId stream = 0;
  std::uint64_t mark = 0;
};

class AllocatorBench {
 public:
  AllocatorBench(std::uint64_t cap_pages, const CachingAllocatorOptions& options,
                 DeviceUnderTest device = host_under_test())
      : cap_bytes_(cap_pages * kPageBytes),
        under_test_(std::move(device)),
        inner_(under_test_.make(cap_bytes_)),
        device_(*inner_),
        ledger_({cap_bytes_, 0, 0}),
        pages_(device_, ledger_, kPageBytes),
        allocator_(std::make_unique<CachingAllocator>(device_, pages_, options)) {}

  StreamId add_stream(bool movable = true) {
    streams_.push_back(inner_->create_stream("s" + std::to_string(streams_.size())));
    return allocator_->add_stream(*streams_.back(), movable);
  }
  CachingAllocator& allocator() { return *allocator_; }
  FailingDevice& device() { return device_; }
  device::Stream& stream(StreamId id) { return *streams_[id]; }
  Ledger& ledger() { return ledger_; }
  std::uint64_t cap_bytes() const { return cap_bytes_; }

  MarkedBlock allocate(std::uint64_t bytes, StreamId stream, Category category,
                       std::uint64_t mark) {
    const MarkedBlock block{allocator_->allocate({bytes, stream, category, 7}), bytes, stream,
                            mark};
    const device::MemoryAccess access{block.data, block.bytes, true};
    queue(stream, [block] { for_each_place(block, write_mark); }, {&access, 1});
    return block;
  }
  // Orders `reader` after the work queued on the block's stream, then checks the block on it.
  void check_on(StreamId reader, const MarkedBlock& block) {
    if (reader != block.stream) {
      const std::unique_ptr<device::Event> event = inner_->create_event();
      streams_[block.stream]->record(*event);
      streams_[reader]->wait(*event);
      allocator_->record_use(block.data, reader);
    }
    const device::MemoryAccess access{block.data, block.bytes, false};
    queue(reader,
          [this, block] {
            for_each_place(block, [this](const std::byte* place, std::uint64_t mark) {
              check_mark(place, mark);
            });
          },
          {&access, 1});
  }
  void queue(StreamId stream, std::function<void()> work,
             std::span<const device::MemoryAccess> accesses = {}) {
    under_test_.queue(*streams_[stream], std::move(work), accesses);
  }
  void free(const MarkedBlock& block) {
    check_on(block.stream, block);
    allocator_->free(block.data);
  }
  // Throws the errors of queued work.
  void synchronize() {
    for (const auto& stream : streams_) stream->synchronize(Deadline::after_seconds(300));
    SLUICE_CHECK_MSG(wrong_marks_ == 0, "a block does not hold what was written to it");
  }
  // Precondition: no block is held any more. All memory can be released then, and is, at the latest
  // at the end.
  void expect_all_returned() {
    synchronize();
    allocator_->check_invariants();
    const CachingAllocatorStatistics statistics = allocator_->statistics();
    EXPECT_EQ(statistics.live_bytes, 0u);
    EXPECT_EQ(statistics.used_bytes, 0u);
    EXPECT_EQ(statistics.allocation_count, statistics.free_count);
    for (const std::uint64_t bytes : statistics.live_by_category) EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(statistics.free_bytes + statistics.cached_bytes + statistics.pending_bytes,
              statistics.reserved_bytes);
    EXPECT_EQ(statistics.reserved_bytes, inner_->counters().live_bytes);
    // Charged before it is obtained, by the same bytes.
    EXPECT_EQ(ledger_.totals(Tier::kDevice).peak_bytes, inner_->counters().peak_bytes);
    EXPECT_LE(inner_->counters().peak_bytes, cap_bytes_);
    allocator_.reset();
    EXPECT_EQ(pages_.live_handles(), 0u);
    pages_.trim();
    EXPECT_EQ(ledger_.totals(Tier::kDevice).live_bytes, 0u);
    EXPECT_EQ(inner_->counters().live_bytes, 0u);
  }

 private:
  static void write_mark(std::byte* place, std::uint64_t mark) {
    std::memcpy(place, &mark, sizeof mark);
  }
  void check_mark(const std::byte* place, std::uint64_t mark) {
    std::uint64_t found = 0;
    std::memcpy(&found, place, sizeof found);
    if (found != mark) ++wrong_marks_;
  }
  // Both ends and the beginning of every page between: all places where pages may change.
  template <typename Visit>
  static void for_each_place(const MarkedBlock& block, Visit visit) {
    if (block.bytes < sizeof block.mark) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(block.data);
    std::uint64_t offset = 0;
    while (offset + sizeof block.mark <= block.bytes) {
      visit(block.data + offset, block.mark);
      offset = round_up(begin + offset + 1, kPageBytes) - begin;
    }
    visit(block.data + block.bytes / 8 * 8 - 8, block.mark);
  }

  const std::uint64_t cap_bytes_;
  std::atomic<std::uint64_t> wrong_marks_ = 0;
  const DeviceUnderTest under_test_;
  std::unique_ptr<device::Device> inner_;
  FailingDevice device_;
  Ledger ledger_;
  PagePool pages_;
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::unique_ptr<CachingAllocator> allocator_;
};

// Sizes as training has them, in little: half of them tiny, some of tens of pages.
inline std::uint64_t random_bytes(const CounterRng& rng, std::uint64_t& index) {
  const std::uint64_t kind = rng.below(index++, 100);
  if (kind < 45) return 1 + rng.below(index++, 4 * kKiB);
  if (kind < 70) return 1 + rng.below(index++, kMiB);
  if (kind < 88) return kMiB + rng.below(index++, 3 * kMiB);
  if (kind < 98) return 1 + rng.below(index++, 6 * kPageBytes);
  return kPageBytes * (1 + rng.below(index++, 24));
}

}  // namespace sluice::allocator
