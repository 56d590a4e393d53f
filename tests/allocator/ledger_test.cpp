#include "allocator/ledger.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::allocator {
namespace {

constexpr std::uint64_t kNoCap = std::numeric_limits<std::uint64_t>::max();

std::uint64_t live(const Ledger& ledger, Tier tier) {
  return ledger.totals(tier).live_bytes;
}
std::uint64_t live(const Ledger& ledger, Tier tier, Category category) {
  return ledger.totals(tier).live_by_category[static_cast<std::size_t>(category)];
}

TEST(Ledger, CapIsHardToTheByte) {
  Ledger ledger({100, kNoCap, 0});
  EXPECT_EQ(ledger.cap_bytes(Tier::kDevice), 100u);
  const Reservation most = ledger.reserve(Tier::kDevice, Category::kWeight, 99);
  EXPECT_FALSE(ledger.try_reserve(Tier::kDevice, Category::kGradient, 2));
  EXPECT_TRUE(ledger.try_reserve(Tier::kDevice, Category::kGradient, 1));
  EXPECT_FALSE(ledger.try_reserve(Tier::kStorage, Category::kWeight, 1));
  EXPECT_TRUE(ledger.try_reserve(Tier::kStorage, Category::kWeight, 0));
  ledger.check_invariants();
}

TEST(Ledger, ARequestNearTheEndOfTheRangeDoesNotWrapAround) {
  Ledger ledger({100, kNoCap, 0});
  const Reservation some = ledger.reserve(Tier::kDevice, Category::kWeight, 10);
  EXPECT_FALSE(ledger.try_reserve(Tier::kDevice, Category::kWeight, kNoCap));
  EXPECT_FALSE(ledger.try_reserve(Tier::kDevice, Category::kWeight, kNoCap - 9));
  const Reservation other = ledger.reserve(Tier::kPinned, Category::kWeight, 10);
  EXPECT_FALSE(ledger.try_reserve(Tier::kPinned, Category::kWeight, kNoCap - 9));
  EXPECT_TRUE(ledger.try_reserve(Tier::kPinned, Category::kWeight, kNoCap - 10));
  ledger.check_invariants();
}

TEST(Ledger, OutOfMemoryCarriesTheFacts) {
  Ledger ledger({100, 100, 100});
  ledger.set_category_cap(Tier::kPinned, Category::kOptimizer, 30);
  const Reservation some = ledger.reserve(Tier::kPinned, Category::kOptimizer, 10);
  const auto reserving = [&](std::uint64_t bytes) {
    return [&ledger, bytes] { return ledger.reserve(Tier::kPinned, Category::kOptimizer, bytes); };
  };
  const auto error = testing::thrown_by<OutOfMemory>(reserving(21));
  EXPECT_EQ(error.tier, Tier::kPinned);
  EXPECT_EQ(error.category, Category::kOptimizer);
  EXPECT_EQ(error.requested_bytes, 21u);
  EXPECT_EQ(error.available_bytes, 20u);
  // The tier's own cap decides where it is the tighter one.
  const Reservation other = ledger.reserve(Tier::kPinned, Category::kWeight, 85);
  EXPECT_EQ(testing::thrown_by<OutOfMemory>(reserving(6)).available_bytes, 5u);
  EXPECT_EQ(live(ledger, Tier::kPinned), 95u);
  EXPECT_THROW(ledger.set_category_cap(Tier::kPinned, Category::kWeight, 84), InternalError);
}

TEST(Ledger, AChargeGoesBackExactlyOnce) {
  Ledger ledger({100, 0, 0});
  {
    Reservation a = ledger.reserve(Tier::kDevice, Category::kWeight, 40);
    Reservation b = std::move(a);
    EXPECT_EQ(a.bytes(), 0u);  // NOLINT(bugprone-use-after-move): the moved-from state is promised
    EXPECT_EQ(live(ledger, Tier::kDevice), 40u);
    b = ledger.reserve(Tier::kDevice, Category::kGradient, 50);
    EXPECT_EQ(live(ledger, Tier::kDevice, Category::kWeight), 0u);
    EXPECT_EQ(live(ledger, Tier::kDevice, Category::kGradient), 50u);
    b.shrink(20);
    EXPECT_EQ(b.bytes(), 30u);
    EXPECT_EQ(live(ledger, Tier::kDevice), 30u);
    EXPECT_THROW(b.shrink(31), InternalError);
    Reservation& itself = b;
    b = std::move(itself);
    EXPECT_EQ(b.bytes(), 30u);
  }
  EXPECT_EQ(live(ledger, Tier::kDevice), 0u);
  EXPECT_EQ(ledger.totals(Tier::kDevice).peak_bytes, 90u);
  ledger.check_invariants();
}

TEST(Ledger, PeaksAreKeptPerTierAndCategory) {
  Ledger ledger({100, 0, 0});
  { const auto r = ledger.reserve(Tier::kDevice, Category::kWeight, 60); }
  { const auto r = ledger.reserve(Tier::kDevice, Category::kActivation, 70); }
  { const auto r = ledger.reserve(Tier::kDevice, Category::kWeight, 10); }
  const LedgerTotals totals = ledger.totals(Tier::kDevice);
  EXPECT_EQ(totals.peak_bytes, 70u);
  EXPECT_EQ(totals.peak_by_category[static_cast<std::size_t>(Category::kWeight)], 60u);
  EXPECT_EQ(totals.peak_by_category[static_cast<std::size_t>(Category::kActivation)], 70u);
}

TEST(Ledger, RecategorisingMovesTheChargeOrLeavesIt) {
  Ledger ledger({50, 0, 0});
  ledger.set_category_cap(Tier::kDevice, Category::kOptimizer, 49);
  Reservation all = ledger.reserve(Tier::kDevice, Category::kWeight, 50);
  ledger.recategorise(all, Category::kGradient);  // fits though the tier is full
  EXPECT_EQ(live(ledger, Tier::kDevice, Category::kWeight), 0u);
  EXPECT_EQ(live(ledger, Tier::kDevice, Category::kGradient), 50u);
  EXPECT_THROW(ledger.recategorise(all, Category::kOptimizer), OutOfMemory);
  EXPECT_EQ(live(ledger, Tier::kDevice, Category::kGradient), 50u);
  EXPECT_EQ(live(ledger, Tier::kDevice, Category::kOptimizer), 0u);
  ledger.check_invariants();
  all = Reservation();
  EXPECT_EQ(live(ledger, Tier::kDevice), 0u);
}

// Each thread holds up to a few reservations; together they press against both caps all the time.
TEST(Ledger, ManyThreadsNeverPassACapAndLeaveNothingBehind) {
  constexpr std::uint64_t kCap = 1000;
  Ledger ledger({kCap, kCap, 0});
  ledger.set_category_cap(Tier::kDevice, Category::kWeight, 300);
  const auto work = [&ledger](std::uint64_t seed) {
    const CounterRng rng(seed, stream_of("ledger"));
    std::vector<Reservation> held;
    for (std::uint64_t i = 0; i < 4000; i += 4) {
      const Tier tier = rng.below(i, 2) == 0 ? Tier::kDevice : Tier::kPinned;
      const auto category = static_cast<Category>(rng.below(i + 1, 3));
      if (auto charge = ledger.try_reserve(tier, category, rng.below(i + 2, 200))) {
        held.push_back(std::move(*charge));
      } else if (!held.empty()) {
        held.erase(held.begin());
      }
      if (!held.empty() && i % 16 == 0) held.back().shrink(held.back().bytes() / 2);
      if (i % 64 == 0) ledger.check_invariants();
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  for (const Tier tier : kTiers) {
    EXPECT_EQ(live(ledger, tier), 0u);
    EXPECT_LE(ledger.totals(tier).peak_bytes, kCap);
  }
  EXPECT_GT(ledger.totals(Tier::kDevice).peak_bytes, kCap / 2);
  ledger.check_invariants();
}

}  // namespace
}  // namespace sluice::allocator
