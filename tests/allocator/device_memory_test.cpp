// Page pool, chunk pool and planned arena over the host device: one physical memory, three users.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/chunk_pool.hpp"
#include "allocator/planned_arena.hpp"
#include "base/rng.hpp"
#include "device/host/host_device.hpp"
#include "tests/support/failing_device.hpp"
#include "tests/support/page.hpp"

namespace sluice::allocator {
namespace {

constexpr std::uint64_t kChunk = 2 * kPage;

class DeviceMemory : public ::testing::Test {
 protected:
  std::unique_ptr<device::Device> inner_ = device::make_host_device({.capacity_bytes = 64 * kPage});
  FailingDevice device_{*inner_};
  Ledger ledger_{{16 * kPage, 0, 0}};
  PagePool pages_{device_, ledger_, kChunk};

  std::uint64_t live_bytes() const { return ledger_.totals(Tier::kDevice).live_bytes; }
  std::uint64_t live_bytes(Category category) const {
    return ledger_.totals(Tier::kDevice).live_by_category[static_cast<std::size_t>(category)];
  }
  // The device's own count equals the charge of the ledger.
  void expect_agreement() const {
    EXPECT_EQ(inner_->counters().live_bytes, live_bytes());
    ledger_.check_invariants();
  }
};

using PagePoolTest = DeviceMemory;
using ChunkPoolTest = DeviceMemory;
using PlannedArenaTest = DeviceMemory;

TEST_F(PagePoolTest, ReusesAHandleOfTheSameSizeOnly) {
  PagePool::Handle* page = pages_.take_page(Category::kWeight);
  pages_.put_back(page);
  EXPECT_EQ(live_bytes(), kPage);  // still ours
  PagePool::Handle* chunk = pages_.take_chunk(Category::kWeight);
  EXPECT_NE(chunk, page);
  EXPECT_EQ(chunk->block.bytes(), kChunk);
  EXPECT_EQ(pages_.take_page(Category::kWeight), page);
  EXPECT_EQ(inner_->counters().allocation_calls, 2u);
  EXPECT_EQ(live_bytes(), kPage + kChunk);
  pages_.check_invariants();
  expect_agreement();
}

TEST_F(PagePoolTest, OneListWhereChunksArePages) {
  PagePool pool(device_, ledger_, kPage);
  PagePool::Handle* page = pool.take_page(Category::kWeight);
  pool.put_back(page);
  EXPECT_EQ(pool.take_chunk(Category::kWeight), page);
  pool.check_invariants();
}

TEST_F(PagePoolTest, AReusedHandleMovesItsCharge) {
  pages_.put_back(pages_.take_chunk(Category::kGradient));
  EXPECT_EQ(live_bytes(Category::kGradient), kChunk);
  ledger_.set_category_cap(Tier::kDevice, Category::kOptimizer, kChunk - 1);
  EXPECT_THROW(pages_.take_chunk(Category::kOptimizer), OutOfMemory);
  EXPECT_EQ(pages_.free_handles(), 1u);
  EXPECT_EQ(live_bytes(Category::kGradient), kChunk);
  EXPECT_NE(pages_.take_chunk(Category::kActivation), nullptr);
  EXPECT_EQ(live_bytes(Category::kGradient), 0u);
  EXPECT_EQ(live_bytes(Category::kActivation), kChunk);
  pages_.check_invariants();
  expect_agreement();
}

TEST_F(PagePoolTest, TrimGivesFreeHandlesBackAndTheirPlacesAreReused) {
  PagePool::Handle* kept = pages_.take_page(Category::kWeight);
  pages_.put_back(pages_.take_page(Category::kWeight));
  pages_.put_back(pages_.take_chunk(Category::kWeight));
  PagePool::Handle* other = pages_.take_chunk(Category::kWeight);
  pages_.put_back(other);
  pages_.trim();
  EXPECT_EQ(live_bytes(), kPage);
  EXPECT_EQ(pages_.live_handles(), 1u);
  EXPECT_EQ(pages_.free_handles(), 0u);
  expect_agreement();
  pages_.check_invariants();
  EXPECT_NE(pages_.take_chunk(Category::kWeight), kept);
  pages_.check_invariants();
}

TEST_F(PagePoolTest, TheCapIsMetBeforeTheDeviceIsAsked) {
  for (int i = 0; i < 8; ++i) static_cast<void>(pages_.take_chunk(Category::kWeight));
  const std::uint64_t calls = device_.calls();
  EXPECT_THROW(pages_.take_page(Category::kWeight), OutOfMemory);
  EXPECT_EQ(device_.calls(), calls);
  pages_.check_invariants();
  expect_agreement();
}

TEST_F(PagePoolTest, RefusesBrokenUse) {
  EXPECT_THROW(PagePool(device_, ledger_, kPage + 1), InternalError);
  EXPECT_THROW(PagePool(device_, ledger_, 0), InternalError);
  PagePool pool(device_, ledger_, kChunk);
  PagePool::Handle* page = pool.take_page(Category::kWeight);
  pool.put_back(page);
  EXPECT_THROW(pool.put_back(page), InternalError);
  pool.check_invariants();
}

TEST_F(PagePoolTest, SeededRandomOperationsKeepTheInvariants) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    PagePool pool(device_, ledger_, kChunk);
    const CounterRng rng(seed, stream_of("page_pool"));
    std::vector<PagePool::Handle*> held;
    for (std::uint64_t i = 0; i < 150; ++i) {
      const std::uint64_t what = rng.below(3 * i, 16);
      const auto category = static_cast<Category>(rng.below(3 * i + 1, kCategoryCount));
      try {
        if (what < 5) {
          held.push_back(pool.take_page(category));
        } else if (what < 8) {
          held.push_back(pool.take_chunk(category));
        } else if (what < 15) {
          if (held.empty()) continue;
          std::swap(held[rng.below(3 * i + 2, held.size())], held.back());
          pool.put_back(held.back());
          held.pop_back();
        } else {
          pool.trim();
        }
      } catch (const OutOfMemory&) {
        EXPECT_GT(live_bytes(), 14 * kPage);
      }
      pool.check_invariants();
      expect_agreement();
      ASSERT_EQ(pool.live_handles(), held.size());
    }
  }
  EXPECT_EQ(live_bytes(), 0u);
  expect_agreement();
}

TEST_F(ChunkPoolTest, AliasedWindowsShowTheSameBytes) {
  ChunkPool chunks(device_, pages_, 4, Category::kWeight);
  EXPECT_EQ(live_bytes(Category::kWeight), 4 * kChunk);
  std::byte* first = chunks.map_window(std::vector<std::uint32_t>{2, 0, 3});
  std::byte* second = chunks.map_window(std::vector<std::uint32_t>{3, 1});
  std::byte* third = chunks.map_window(std::vector<std::uint32_t>{0});
  chunks.check_invariants();
  // Each slot gets a mark at its begin and end through the first window that shows it.
  for (int i = 0; i < 3; ++i) {
    const auto mark = static_cast<std::byte>(10 + i);
    first[static_cast<std::uint64_t>(i) * kChunk] = mark;
    first[static_cast<std::uint64_t>(i + 1) * kChunk - 1] = mark;
  }
  second[kChunk] = std::byte{99};
  EXPECT_EQ(second[0], std::byte{12});
  EXPECT_EQ(second[kChunk - 1], std::byte{12});
  EXPECT_EQ(third[0], std::byte{11});
  EXPECT_EQ(third[kChunk - 1], std::byte{11});
  third[5] = std::byte{77};
  EXPECT_EQ(first[kChunk + 5], std::byte{77});
  EXPECT_EQ(inner_->counters().live_bytes, 4 * kChunk);  // windows cost addresses only
}

TEST_F(ChunkPoolTest, RefusesBrokenWindows) {
  ChunkPool chunks(device_, pages_, 2, Category::kWeight);
  EXPECT_THROW(chunks.map_window(std::vector<std::uint32_t>{0, 0}), InternalError);
  EXPECT_THROW(chunks.map_window(std::vector<std::uint32_t>{2}), InternalError);
  EXPECT_THROW(chunks.map_window({}), InternalError);
}

TEST_F(ChunkPoolTest, APoolPastTheCapAllocatesNothing) {
  EXPECT_THROW(ChunkPool(device_, pages_, 9, Category::kWeight), OutOfMemory);
  EXPECT_EQ(pages_.live_handles(), 0u);
  pages_.trim();
  EXPECT_EQ(live_bytes(), 0u);
  const ChunkPool fits(device_, pages_, 8, Category::kWeight);
  EXPECT_EQ(live_bytes(), 16 * kPage);
}

TEST_F(ChunkPoolTest, PhysicalMemoryMovesToTheNextPhase) {
  { const ChunkPool forward(device_, pages_, 8, Category::kWeight); }
  const std::uint64_t allocations = inner_->counters().allocation_calls;
  const ChunkPool backward(device_, pages_, 8, Category::kGradient);
  EXPECT_EQ(inner_->counters().allocation_calls, allocations);
  EXPECT_EQ(live_bytes(Category::kWeight), 0u);
  EXPECT_EQ(live_bytes(Category::kGradient), 16 * kPage);
}

TEST_F(PlannedArenaTest, IsContiguousAcrossPages) {
  {
    const PlannedArena arena(device_, pages_, 3 * kPage - 5, Category::kActivation);
    EXPECT_EQ(arena.bytes(), 3 * kPage);
    EXPECT_EQ(live_bytes(Category::kActivation), 3 * kPage);
    std::memset(arena.at(0), 0x3c, arena.bytes());
    EXPECT_EQ(*(arena.at(arena.bytes()) - 1), std::byte{0x3c});
    EXPECT_THROW(static_cast<void>(arena.at(3 * kPage + 1)), InternalError);
    EXPECT_EQ(pages_.live_handles(), 3u);
  }
  EXPECT_EQ(pages_.live_handles(), 0u);
  expect_agreement();
}

// Shorter than the slots, longer, and exactly as long: bytes after them have pages of their own.
TEST_F(PlannedArenaTest, MayLieOverSlots) {
  for (const std::uint64_t bytes : {kPage / 2, kChunk, kChunk + 5, 2 * kChunk,
                                    2 * kChunk + kPage + 1, 2 * kChunk + 3 * kPage}) {
    PagePool pages(device_, ledger_, kChunk);
    {
      ChunkPool chunks(device_, pages, 2, Category::kWeight);
      std::byte* const window = chunks.map_window(std::vector<std::uint32_t>{1, 0});
      const PlannedArena arena(device_, pages, bytes, Category::kActivation, &chunks);
      const std::uint64_t own = bytes > 2 * kChunk ? arena.bytes() - 2 * kChunk : 0;
      EXPECT_EQ(arena.bytes(), round_up(bytes, kPage));
      EXPECT_EQ(live_bytes(Category::kWeight), 2 * kChunk);
      EXPECT_EQ(live_bytes(Category::kActivation), own);
      for (std::uint64_t at = 0; at < arena.bytes(); at += kPage) {
        *arena.at(at) = static_cast<std::byte>(1 + at / kPage);
      }
      for (std::uint64_t at = 0; at < std::min(arena.bytes(), 2 * kChunk); at += kPage) {
        const std::uint64_t in_window = at < kChunk ? kChunk + at : at - kChunk;
        EXPECT_EQ(window[in_window], static_cast<std::byte>(1 + at / kPage)) << bytes;
      }
      EXPECT_EQ(*arena.at(arena.bytes() - kPage), static_cast<std::byte>(arena.bytes() / kPage));
    }
    EXPECT_EQ(pages.live_handles(), 0u);
    expect_agreement();
  }
}

TEST_F(PlannedArenaTest, ZeroBytesNeedNothing) {
  const PlannedArena arena(device_, pages_, 0, Category::kActivation);
  EXPECT_EQ(arena.at(0), nullptr);
  EXPECT_EQ(device_.calls(), 0u);
}

TEST_F(PlannedArenaTest, PastTheCapAllocatesNothing) {
  EXPECT_THROW(PlannedArena(device_, pages_, 17 * kPage, Category::kActivation), OutOfMemory);
  EXPECT_EQ(pages_.live_handles(), 0u);
  pages_.check_invariants();
  expect_agreement();
}

// Every device call of a whole set-up fails once; everything obtained before it is released.
TEST_F(DeviceMemory, AFailureOfAnyDeviceCallReleasesEverything) {
  const auto set_up = [this] {
    PagePool pages(device_, ledger_, kChunk);
    try {
      ChunkPool chunks(device_, pages, 3, Category::kWeight);
      chunks.map_window(std::vector<std::uint32_t>{2, 1});
      const PlannedArena arena(device_, pages, 2 * kPage, Category::kActivation);
      chunks.map_window(std::vector<std::uint32_t>{0, 1, 2});
      const PlannedArena over(device_, pages, 3 * kChunk + 1, Category::kActivation, &chunks);
      chunks.check_invariants();
    } catch (const DeviceError&) {
      pages.check_invariants();
      EXPECT_EQ(pages.live_handles(), 0u);
      expect_agreement();
      throw;
    }
  };
  set_up();
  const auto calls = static_cast<std::int64_t>(device_.calls());
  // 3 blocks; a range and 2 maps; a range, 2 blocks and 2 maps; a range and 3 maps; a range, 3
  // maps, a block and a map.
  EXPECT_EQ(calls, 21);
  for (std::int64_t call = 0; call < calls; ++call) {
    device_.fail_call(call);
    EXPECT_THROW(set_up(), DeviceError) << "call " << call;
    EXPECT_EQ(live_bytes(), 0u) << "call " << call;
    expect_agreement();
  }
  device_.fail_call(-1);
  set_up();
}

}  // namespace
}  // namespace sluice::allocator
