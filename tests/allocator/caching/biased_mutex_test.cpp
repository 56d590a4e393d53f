#include "allocator/caching/biased_mutex.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace sluice::allocator {
namespace {

// Two counters that only mutual exclusion keeps equal; plain, so that ThreadSanitizer judges too.
struct Guarded {
  BiasedMutex mutex;
  std::uint64_t first = 0, second = 0;

  void add() {
    first += 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    second += 1;
  }
};

bool can_be_biased() {
  BiasedMutex mutex;
  mutex.bias_to_this_thread();
  return mutex.is_biased();
}

TEST(BiasedMutex, IsBiasedToWhoLocksItFirst) {
  if (!can_be_biased()) GTEST_SKIP() << "no membarrier(2) here";
  BiasedMutex mutex;
  EXPECT_FALSE(mutex.is_biased());
  for (int i = 0; i < 3; ++i) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(mutex.is_biased());
  }
  std::jthread([&] {
    { const BiasedGuests guests({&mutex}); }
    EXPECT_TRUE(mutex.is_biased()) << "a guest took the bias away";
    { const std::lock_guard lock(mutex); }
    EXPECT_FALSE(mutex.is_biased());
  }).join();
  { const std::lock_guard lock(mutex); }
  EXPECT_FALSE(mutex.is_biased()) << "once it was several threads' it stays so";
}

TEST(BiasedMutex, TheOwnerMayBeAGuest) {
  BiasedMutex first, second;
  { const std::lock_guard lock(first); }
  for (int i = 0; i < 3; ++i) {
    { const BiasedGuests guests({&first, &second}); }
    { const std::lock_guard lock(first); }
  }
}

TEST(BiasedMutex, AnotherOwnerComesWhenTheFirstHasEnded) {
  if (!can_be_biased()) GTEST_SKIP() << "no membarrier(2) here";
  Guarded guarded;
  for (int i = 0; i < 20; ++i) {
    std::jthread([&] {
      guarded.mutex.bias_to_this_thread();
      for (int k = 0; k < 100; ++k) {
        const std::lock_guard lock(guarded.mutex);
        guarded.add();
      }
      EXPECT_TRUE(guarded.mutex.is_biased());
    }).join();
  }
  EXPECT_EQ(guarded.first, 2000u);
}

// Owners that lock all the time, guests that come and go and hold several, and, where `revoked`,
// others that take the bias for good meanwhile.
void run_contest(bool revoked) {
  constexpr std::uint64_t kTimes = 500000;
  constexpr std::size_t kOwners = 2;
  const auto guarded = std::make_unique<std::array<Guarded, kOwners>>();
  std::atomic<std::size_t> owned = 0, done = 0;
  std::atomic<std::uint64_t> guest_times = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kOwners; ++i) {
      threads.emplace_back([&, i] {
        Guarded& mine = guarded->at(i);
        { const std::lock_guard lock(mine.mutex); }
        ++owned;
        while (owned < kOwners) std::this_thread::yield();
        for (std::uint64_t n = 0; n < kTimes; ++n) {
          const std::lock_guard lock(mine.mutex);
          EXPECT_EQ(mine.first, mine.second);
          mine.add();
        }
        ++done;
      });
    }
    while (owned < kOwners) std::this_thread::yield();
    for (int guest = 0; guest < 2; ++guest) {
      threads.emplace_back([&] {
        do {
          const BiasedGuests guests({&guarded->at(0).mutex, &guarded->at(1).mutex});
          for (Guarded& one : *guarded) {
            EXPECT_EQ(one.first, one.second);
            one.add();
          }
          ++guest_times;
        } while (done < kOwners);
      });
    }
    if (revoked) {
      threads.emplace_back([&] {
        for (std::uint64_t n = 0; n < kTimes; ++n) {
          const std::lock_guard lock(guarded->at(0).mutex);
          guarded->at(0).add();
        }
      });
    }
  }
  EXPECT_GT(guest_times, 0u);
  EXPECT_EQ(guarded->at(0).first, kTimes + guest_times + (revoked ? kTimes : 0));
  EXPECT_EQ(guarded->at(1).second, kTimes + guest_times);
}

TEST(BiasedMutex, OwnersAndGuestsExcludeEachOther) {
  run_contest(false);
}

TEST(BiasedMutex, SoDoThreadsThatTakeTheBiasMeanwhile) {
  for (int i = 0; i < 3; ++i) run_contest(true);
}

}  // namespace
}  // namespace sluice::allocator
