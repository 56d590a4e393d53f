// An allocator that runs out of memory, for the suites that look at the report.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "allocator/caching/oom_report.hpp"
#include "device/counting/counting_device.hpp"
#include "tests/support/forwarding_device.hpp"

namespace sluice::allocator {

inline constexpr std::uint64_t kPage = kPageBytes;

// A counting device that other processes share: they hold a part of its capacity.
class SharedDevice final : public testing::ForwardingDevice {
 public:
  SharedDevice(std::uint64_t capacity_bytes, std::uint64_t held_by_others)
      : ForwardingDevice(std::make_unique<device::CountingDevice>(capacity_bytes)),
        held_by_others_(held_by_others) {}
  device::PhysicalBlock create_block(std::uint64_t bytes) override {
    if (counters().live_bytes + bytes + held_by_others_ > facts().capacity_bytes) {
      throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes, 0);
    }
    return inner().create_block(bytes);
  }

 private:
  std::uint64_t held_by_others_;
};

// A CachingAllocator with two streams under a cap, with the device and the ledger below it.
struct OomFixture {
  OomFixture(std::unique_ptr<device::Device> its_device, std::uint64_t cap_bytes,
             CachingAllocatorOptions options = {}, bool b_moves = true)
      : device(std::move(its_device)),
        ledger({cap_bytes, 0, 0}),
        pages(*device, ledger, kPage),
        stream_a(device->create_stream("a")),
        stream_b(device->create_stream("b")) {
    options.segment_bytes = 512 * kPage;
    allocator = std::make_unique<CachingAllocator>(*device, pages, options);
    a = allocator->add_stream(*stream_a);
    b = allocator->add_stream(*stream_b, b_moves);
  }

  std::byte* get(std::uint64_t bytes, StreamId stream, Category category = Category::kActivation,
                 std::uint32_t name = 0) const {
    return allocator->allocate({bytes, stream, category, name});
  }
  // Makes a request that must fail, and returns its report.
  std::shared_ptr<const OomReport> fail(std::uint64_t bytes, StreamId stream,
                                        Category category = Category::kActivation,
                                        std::uint32_t name = 0) const {
    try {
      get(bytes, stream, category, name);
    } catch (const OutOfMemoryReported& error) {
      EXPECT_EQ(error.requested_bytes, bytes);
      EXPECT_EQ(error.report->sentence(), error.what());
      allocator->check_invariants();
      return error.report;
    }
    ADD_FAILURE() << "a request of " << bytes << " bytes was served";
    return std::make_shared<OomReport>();
  }

  std::unique_ptr<device::Device> device;
  Ledger ledger;
  PagePool pages;
  std::unique_ptr<device::Stream> stream_a;
  std::unique_ptr<device::Stream> stream_b;
  std::unique_ptr<CachingAllocator> allocator;
  StreamId a = 0;
  StreamId b = 0;
};

inline std::unique_ptr<device::Device> counting(std::uint64_t pages) {
  return std::make_unique<device::CountingDevice>(pages * kPage);
}

// Live bytes by category, by site and by stream have one sum, and the parts of the reserved bytes
// add up.
inline void expect_sums(const OomReport& report) {
  const auto& categories = report.live_by_category;
  EXPECT_EQ(std::accumulate(categories.begin(), categories.end(), std::uint64_t{0}),
            report.live_bytes);
  std::uint64_t site_bytes = 0;
  std::uint64_t site_count = 0;
  for (const OomSite& site : report.sites) {
    site_bytes += site.bytes;
    site_count += site.count;
  }
  EXPECT_EQ(site_bytes, report.live_bytes);
  EXPECT_EQ(site_count, report.live_count);
  std::uint64_t stream_bytes = 0;
  for (const OomStream& stream : report.streams) stream_bytes += stream.live_bytes;
  EXPECT_EQ(stream_bytes, report.live_bytes);
  EXPECT_EQ(report.used_bytes + report.pending_bytes + report.cached_bytes + report.free_bytes,
            report.reserved_bytes);
}

}  // namespace sluice::allocator
