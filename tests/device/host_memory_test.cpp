// The host device's memory, where the host may look at it.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/rng.hpp"
#include "device/host/host_device.hpp"

namespace sluice::device {
namespace {

// Asks the kernel to read a byte: an address without memory is EFAULT there, and no signal.
bool readable(const std::byte* data) {
  std::array<int, 2> pipe_ends{};
  EXPECT_EQ(::pipe(pipe_ends.data()), 0);
  const long written = ::syscall(SYS_write, pipe_ends[1], data, 1);
  const int error_number = errno;
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  if (written != 1) {
    EXPECT_EQ(error_number, EFAULT);
  }
  return written == 1;
}

TEST(HostMemory, OnlyMappedAddressesCanBeRead) {
  const auto device = make_host_device({.capacity_bytes = 8 * kMiB});
  const AddressRange range = device->reserve(3 * kPageBytes);
  const PhysicalBlock block = device->create_block(kPageBytes);
  EXPECT_FALSE(readable(range.data() + kPageBytes));
  {
    const Mapping mapping = device->map(range, kPageBytes, block);
    EXPECT_TRUE(readable(mapping.data()));
    EXPECT_TRUE(readable(mapping.data() + kPageBytes - 1));
    EXPECT_FALSE(readable(mapping.data() - 1));
    EXPECT_FALSE(readable(mapping.data() + kPageBytes));
  }
  EXPECT_FALSE(readable(range.data() + kPageBytes));
}

TEST(HostMemory, AReleasedBlockLivesUntilItsLastMappingGoes) {
  const auto device = make_host_device({.capacity_bytes = kPageBytes});
  const AddressRange range = device->reserve(2 * kPageBytes);
  PhysicalBlock block = device->create_block(kPageBytes);
  Mapping first = device->map(range, 0, block);
  Mapping second = device->map(range, kPageBytes, block);
  first.data()[5] = std::byte{9};
  block = PhysicalBlock();
  EXPECT_EQ(second.data()[5], std::byte{9});
  EXPECT_EQ(device->counters().live_bytes, kPageBytes);
  EXPECT_THROW(device->create_block(kPageBytes), OutOfMemory);
  first = Mapping();
  EXPECT_THROW(device->create_block(kPageBytes), OutOfMemory);
  second = Mapping();
  EXPECT_EQ(device->counters().live_bytes, 0u);
  block = device->create_block(kPageBytes);
  first = device->map(range, 0, block);
  EXPECT_EQ(first.data()[5], std::byte{0});  // the pages went back to the system
}

TEST(HostMemory, AReleasedRangeLivesUntilItsLastMappingGoes) {
  const auto device = make_host_device({.capacity_bytes = kPageBytes});
  AddressRange range = device->reserve(2 * kPageBytes);
  const PhysicalBlock block = device->create_block(kPageBytes);
  Mapping mapping = device->map(range, kPageBytes, block);
  range = AddressRange();
  mapping.data()[0] = std::byte{1};
  EXPECT_EQ(mapping.data()[0], std::byte{1});
}

struct LiveBlock {
  PhysicalBlock block;
  std::uint64_t pages = 0;
  std::uint64_t tag = 0;
};
struct LiveMapping {
  Mapping mapping;
  std::size_t block = 0;
};

// Random reserve-free traffic of blocks and mappings against a model that knows the bytes last
// written to each block.
TEST(HostMemory, RandomTrafficAgreesWithAModel) {
  constexpr std::uint64_t kPages = 12;
  constexpr std::uint64_t kSlots = 16;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const auto device = make_host_device({.capacity_bytes = kPages * kPageBytes});
    const AddressRange range = device->reserve(kSlots * kPageBytes);
    const CounterRng rng(seed, stream_of("host_memory"));
    std::map<std::size_t, LiveBlock> blocks;
    std::map<std::uint64_t, LiveMapping> mappings;  // by slot
    std::uint64_t draw = 0;
    std::uint64_t live_pages = 0;
    std::size_t next_block = 0;
    auto pick = [&](const auto& entries) {
      return std::next(entries.begin(),
                       static_cast<std::ptrdiff_t>(rng.below(draw++, entries.size())));
    };
    for (std::uint64_t step = 1; step <= 150; ++step) {
      const std::uint64_t action = rng.below(draw++, 4);
      if (action == 0) {
        const std::uint64_t pages = 1 + rng.below(draw++, 4);
        if (live_pages + pages > kPages) {
          ASSERT_THROW(device->create_block(pages * kPageBytes), OutOfMemory);
        } else {
          blocks.emplace(next_block++,
                         LiveBlock{device->create_block(pages * kPageBytes), pages, 0});
          live_pages += pages;
        }
      } else if (action == 1 && !blocks.empty()) {
        const auto chosen = pick(blocks);
        const std::uint64_t slot = rng.below(draw++, kSlots);
        const std::uint64_t end = slot + chosen->second.pages;
        bool fits = end <= kSlots;
        for (const auto& [other, live] : mappings) {
          const std::uint64_t other_end = other + blocks.at(live.block).pages;
          fits = fits && (end <= other || other_end <= slot);
        }
        if (!fits) {
          ASSERT_THROW(device->map(range, slot * kPageBytes, chosen->second.block), InternalError);
          continue;
        }
        Mapping mapping = device->map(range, slot * kPageBytes, chosen->second.block);
        std::memcpy(mapping.data(), &step, sizeof step);
        std::memcpy(mapping.data() + mapping.bytes() - sizeof step, &step, sizeof step);
        blocks.at(chosen->first).tag = step;
        mappings.emplace(slot, LiveMapping{std::move(mapping), chosen->first});
      } else if (action == 2 && !mappings.empty()) {
        mappings.erase(pick(mappings));
      } else if (action == 3 && !blocks.empty()) {
        const auto chosen = pick(blocks);
        std::erase_if(mappings, [&](const auto& m) { return m.second.block == chosen->first; });
        live_pages -= chosen->second.pages;
        blocks.erase(chosen);
      }
      ASSERT_EQ(device->counters().live_bytes, live_pages * kPageBytes);
      for (const auto& [slot, live] : mappings) {
        std::uint64_t first = 0;
        std::uint64_t last = 0;
        std::memcpy(&first, live.mapping.data(), sizeof first);
        std::memcpy(&last, live.mapping.data() + live.mapping.bytes() - sizeof last, sizeof last);
        ASSERT_EQ(first, blocks.at(live.block).tag) << "seed " << seed << " step " << step;
        ASSERT_EQ(last, blocks.at(live.block).tag) << "seed " << seed << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::device
