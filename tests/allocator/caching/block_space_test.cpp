// The space of blocks against a trivial model: one letter for each unit of addresses.
#include "allocator/caching/block_space.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/caching/stream_pool.hpp"
#include "base/rng.hpp"
#include "device/host/host_device.hpp"
#include "tests/allocator/caching/stress_operations.hpp"

namespace sluice::allocator {
namespace {

constexpr std::uint64_t kUnit = BlockSpace::kAlignment;
constexpr std::uint64_t kPageUnits = 8;  // small pages, so that few units make many of them
constexpr std::uint64_t kSpacePage = kPageUnits * kUnit;

class BlockSpaceTest : public ::testing::Test {
 protected:
  struct Range {
    std::unique_ptr<AddressSegment> segment;
    std::string units;  // 'u'sed, 'f'ree, 'h'ollow
  };
  // A maximal stretch of units of one letter (of used ones: a block).
  struct Stretch {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    char letter = 'h';
  };

  void add_range(std::uint64_t address, std::uint64_t pages) {
    auto segment = std::make_unique<AddressSegment>(
        device::AddressRange(nullptr, reinterpret_cast<void*>(address), pages * kSpacePage, 0),
        kSpacePage, pool_, true);
    space_.add_range(address, pages * kSpacePage, segment.get());
    ranges_[address] = {std::move(segment), std::string(pages * kPageUnits, 'h')};
  }
  Range& range_of(std::uint64_t address) { return std::prev(ranges_.upper_bound(address))->second; }
  void mark(std::uint64_t address, std::uint64_t bytes, char letter) {
    Range& range = range_of(address);
    range.units.replace((address - range.segment->base()) / kUnit, bytes / kUnit, bytes / kUnit,
                        letter);
  }
  std::vector<Stretch> stretches() const {
    std::vector<Stretch> result;
    for (const auto& [base, range] : ranges_) {
      for (std::size_t i = 0; i < range.units.size();) {
        const std::uint64_t address = base + i * kUnit;
        const auto used = used_.find(address);
        std::size_t end = i + 1;
        if (used != used_.end()) {
          end = i + used->second->bytes / kUnit;
        } else {
          while (end < range.units.size() && range.units[end] == range.units[i]) ++end;
        }
        result.push_back({address, (end - i) * kUnit, range.units[i]});
        i = end;
      }
    }
    return result;
  }
  // The blocks are the model's stretches, and the sums are theirs.
  void expect_as_modelled() {
    space_.check_invariants();
    const std::vector<Stretch> expected = stretches();
    std::size_t at = 0;
    std::uint64_t used_bytes = 0;
    std::uint64_t free_bytes = 0;
    space_.visit_all([&](const Block& block) {
      ASSERT_LT(at, expected.size());
      const Stretch& stretch = expected[at++];
      ASSERT_EQ(block.address, stretch.address);
      ASSERT_EQ(block.bytes, stretch.bytes);
      const char letter = block.kind == BlockKind::kUsed   ? 'u'
                          : block.kind == BlockKind::kFree ? 'f'
                                                           : 'h';
      ASSERT_EQ(letter, stretch.letter);
      if (letter == 'u') used_bytes += block.bytes;
      if (letter == 'f') free_bytes += block.bytes;
      const Block* const found = block.segment->find_block(block.address);
      ASSERT_EQ(found, letter == 'u' ? &block : nullptr);
    });
    ASSERT_EQ(at, expected.size());
    ASSERT_EQ(space_.used_bytes(), used_bytes);
    ASSERT_EQ(space_.free_bytes(), free_bytes);
  }
  // Found whenever there is one; the best to within a bin's width, where bins are not crowded, and
  // any of those that fit exactly.
  Block* find_as_promised(std::uint64_t bytes) {
    Block* const found = space_.find_free(bytes);
    std::optional<Stretch> best;
    int free_count = 0;
    for (const Stretch& stretch : stretches()) {
      if (stretch.letter != 'f') continue;
      ++free_count;
      if (stretch.bytes >= bytes && (!best || stretch.bytes < best->bytes)) best = stretch;
    }
    EXPECT_EQ(found != nullptr, best.has_value()) << bytes;
    if (found == nullptr || !best) return nullptr;
    EXPECT_GE(found->bytes, bytes);
    if (free_count > 16) return found;
    if (found->bytes < 128 * kUnit) {
      EXPECT_EQ(found->bytes, best->bytes);
      if (found->bytes > bytes) {
        EXPECT_EQ(found->address, best->address);
      }
    } else {
      EXPECT_LE(found->bytes - best->bytes, best->bytes / 64);
    }
    return found;
  }
  void take(Block* block, std::uint64_t address, std::uint64_t bytes) {
    Block* const taken = space_.take_at(block, address, bytes);
    ASSERT_EQ(taken->address, address);
    ASSERT_EQ(taken->bytes, bytes);
    used_[address] = taken;
    mark(address, bytes, 'u');
  }
  // The block that holds a page which is of one letter throughout, picked by `number`; or null.
  Block* pick_page(char letter, std::uint64_t number, std::uint64_t& page) {
    std::vector<std::uint64_t> pages;
    for (const auto& [base, range] : ranges_) {
      for (std::size_t i = 0; i < range.units.size(); i += kPageUnits) {
        if (range.units.compare(i, kPageUnits, std::string(kPageUnits, letter)) == 0) {
          pages.push_back(base + i * kUnit);
        }
      }
    }
    if (pages.empty()) return nullptr;
    page = pages[number % pages.size()];
    const Block* holder = nullptr;
    space_.visit_all([&](const Block& block) {
      if (page >= block.address && page < block.address + block.bytes) holder = &block;
    });
    return const_cast<Block*>(holder);
  }
  void expect_cheapest_window(std::uint64_t bytes, const CounterRng& prices);

  std::unique_ptr<device::Device> device_ =
      device::make_host_device({.capacity_bytes = kPageBytes});
  std::unique_ptr<device::Stream> stream_ = device_->create_stream("unused");
  BlockStore store_;
  StreamPool pool_{0, *stream_, true, store_, kSpacePage, nullptr};
  std::map<std::uint64_t, Range> ranges_;
  BlockSpace space_{store_, kSpacePage};
  std::map<std::uint64_t, Block*> used_;
};

// Compares with all windows that begin with a block, or end with a run that has a free end.
void BlockSpaceTest::expect_cheapest_window(std::uint64_t bytes, const CounterRng& prices) {
  const auto price = [&](std::uint64_t page) {
    return static_cast<double>(1 + prices.below(page / kSpacePage, 4));
  };
  const auto found = space_.find_window(
      bytes, [&](const AddressSegment&, std::uint64_t page) { return price(page); });
  std::optional<double> best;
  const std::vector<Stretch> all = stretches();
  const auto cost_at = [&](std::uint64_t address) -> std::optional<double> {
    const Range& range = range_of(address);
    const std::uint64_t first = (address - range.segment->base()) / kUnit;
    if (first + bytes / kUnit > range.units.size()) return std::nullopt;
    const std::string letters = range.units.substr(first, bytes / kUnit);
    if (letters.find('u') != std::string::npos) return std::nullopt;
    double cost = 0.0;
    for (std::uint64_t page = address / kSpacePage * kSpacePage; page < address + bytes;
         page += kSpacePage) {
      if (range.units[(std::max(page, address) - range.segment->base()) / kUnit] == 'h' ||
          (page < address + bytes && page >= range.segment->base() &&
           range.units[(page + kSpacePage - kUnit - range.segment->base()) / kUnit] == 'h')) {
        cost += price(page);
      }
    }
    return cost;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].letter == 'u') continue;
    // A free stretch with no unbacked one next to it is no window: find_free knows it already.
    const auto is_unbacked = [&](std::size_t n) {
      return n < all.size() && all[n].letter == 'h' &&
             &range_of(all[n].address) == &range_of(all[i].address);
    };
    if (all[i].letter == 'f' && !is_unbacked(i + 1) && (i == 0 || !is_unbacked(i - 1))) continue;
    if (const auto cost = cost_at(all[i].address); cost && (!best || *cost < *best)) best = cost;
  }
  if (!best) return;
  ASSERT_TRUE(found.has_value());
  const auto cost = cost_at(found->address);
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(*cost, found->cost);
  EXPECT_LE(found->cost, *best);
  EXPECT_LE(found->first->address, found->address);
  EXPECT_GT(found->first->address + found->first->bytes, found->address);
}

TEST_F(BlockSpaceTest, AnySequenceAgreesWithTheModel) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const CounterRng rng(seed, stream_of("block_space_test"));
    const std::uint64_t base = seed << 40U;
    add_range(base, 40);
    add_range(base + 64 * kSpacePage, 24);
    const std::uint64_t operation_count = stress_operations(8000) / 4;
    for (std::uint64_t step = 0, n = 0; step < operation_count; ++step) {
      const std::uint64_t kind = rng.below(n++, 100);
      // Half of the requests are close together, so that bins hold several.
      const std::uint64_t units =
          rng.below(n++, 2) == 0 ? 1 + rng.below(n++, 4) : 1 + rng.below(n++, 150);
      std::uint64_t page = 0;
      if (kind < 35) {
        Block* const block = find_as_promised(units * kUnit);
        if (block == nullptr) continue;
        const std::uint64_t slack = (block->bytes - units * kUnit) / kUnit;
        const bool inside = slack > 0 && rng.below(n++, 4) == 0;
        take(block, block->address + (inside ? rng.below(n++, slack + 1) * kUnit : 0),
             units * kUnit);
      } else if (kind < 60) {
        if (used_.empty()) continue;
        const auto picked =
            std::next(used_.begin(), static_cast<std::ptrdiff_t>(rng.below(n++, used_.size())));
        const std::uint64_t bytes = picked->second->bytes;
        mark(picked->first, bytes, 'f');
        space_.free(picked->second);
        used_.erase(picked);
      } else if (kind < 80) {
        if (Block* const block = pick_page('h', rng.bits(n++), page)) {
          const Block* const filled = space_.fill(block, page);
          ASSERT_EQ(filled->kind, BlockKind::kFree);
          ASSERT_TRUE(page >= filled->address && page < filled->address + filled->bytes);
          mark(page, kSpacePage, 'f');
        }
      } else if (kind < 92) {
        if (Block* const block = pick_page('f', rng.bits(n++), page)) {
          ASSERT_EQ(space_.unback(block, page)->kind, BlockKind::kUnbacked);
          mark(page, kSpacePage, 'h');
        }
      } else {
        expect_cheapest_window(units * kUnit, CounterRng(step, seed));
      }
      ASSERT_NO_FATAL_FAILURE(expect_as_modelled());
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(BlockSpaceTest, ACrowdedBinHidesNoBlockThatIsLargeEnough) {
  const std::uint64_t base = std::uint64_t{1} << 40U;
  add_range(base, 700);
  Block* block = nullptr;
  space_.visit_all([&](const Block& only) { block = const_cast<Block*>(&only); });
  for (std::uint64_t page = 0; page < 700; ++page) {
    Block* const filled = space_.fill(block, base + page * kSpacePage);
    block = filled->next != nullptr ? filled->next : filled;
  }
  // One bin holds 256 to 259 units: one block of 259, and twenty of 256 that are freed after it.
  std::vector<Block*> blocks;
  for (int i = 0; i < 21; ++i) {
    const std::uint64_t bytes = (i == 0 ? 259 : 256) * kUnit;
    Block* const rest = space_.find_free(bytes);
    blocks.push_back(space_.take(rest, bytes));
    Block* const wall = space_.find_free(kUnit);
    space_.take(wall, kUnit);
  }
  for (Block* one : blocks) space_.free(one);
  Block* const found = space_.find_free(259 * kUnit);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found, blocks.front());
}

}  // namespace
}  // namespace sluice::allocator
