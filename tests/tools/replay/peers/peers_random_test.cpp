// Random sequences of calls through every replica: no byte is given to two allocations, the
// counters add up, and a second run gives the same addresses.
#include <gtest/gtest.h>

#include <map>

#include "base/rng.hpp"
#include "tests/tools/replay/peers/peer_script.hpp"
#include "tools/replay/peers/peers.hpp"

namespace sluice::replay {
namespace {

struct Outcome {
  std::vector<std::uint64_t> addresses;  // 0: out of memory
  PolicyCounters counters;
};

// Sizes as programs request them: mostly small or a few MiB, some of hundreds of MiB.
std::uint64_t random_bytes(const CounterRng& rng, std::uint64_t index) {
  const std::uint64_t fine = rng.bits(3 * index);
  switch (rng.below(3 * index + 1, 8)) {
    case 0:
    case 1:
      return 1 + fine % (64 * 1024);
    case 2:
      return 1 + fine % (2 * kMiB);
    case 3:
    case 4:
      return kMiB + fine % (11 * kMiB);
    case 5:
      return (1 + fine % 64) * 2 * kMiB;
    case 6:
      return 10 * kMiB + fine % (300 * kMiB);
    default:
      return (200 + fine % 900) * kMiB;
  }
}

record::MemoryTrace random_trace(std::uint64_t seed, std::size_t count) {
  const CounterRng rng(seed, stream_of("peers/allocations"));
  record::MemoryTrace trace;
  trace.max_split_bytes = seed % 3 == 1 ? 100 * kMiB : UINT64_MAX;
  trace.roundup_power2_divisions = seed % 4 == 2 ? 8 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    record::TraceAllocation one;
    one.bytes = random_bytes(rng, i);
    one.stream = rng.below(3 * i + 2, 16) < 12 ? 1 : 2 + i % 2;
    if (seed % 2 == 1) one.segment_address = (1 + rng.bits(3 * i + 2) % 4096) * 2 * kMiB;
    trace.allocations.push_back(one);
  }
  return trace;
}

class Walk {
 public:
  Walk(const NamedPolicy& named, const record::MemoryTrace& trace, std::uint64_t seed,
       std::uint64_t capacity_bytes)
      : trace_(trace),
        capacity_bytes_(capacity_bytes),
        rng_(seed, stream_of("peers/operations")),
        policy_(named.make(trace, capacity_bytes)) {}

  Outcome run() {
    while (next_id_ < trace_.allocations.size()) step();
    while (!live_.empty()) free_one(false);
    while (!pending_.empty()) complete_one();
    policy_->flush();
    check();
    outcome_.counters = policy_->counters();
    return outcome_;
  }

 private:
  void step() {
    const std::uint64_t draw = rng_.below(draws_++, 1000);
    // Memory fills and drains in waves.
    const std::uint64_t to_free = (next_id_ / 150) % 2 == 0 ? 300 : 560;
    if (draw < to_free) {
      if (!live_.empty()) free_one(draw % 8 == 0);
    } else if (draw < to_free + 40) {
      if (!pending_.empty()) complete_one();
    } else if (draw == 999) {
      policy_->flush();
    } else {
      allocate();
    }
    check();
  }

  void allocate() {
    const std::uint32_t id = next_id_++;
    const std::optional<std::uint64_t> address = policy_->allocate(id);
    outcome_.addresses.push_back(address.value_or(0));
    if (!address) return;
    const std::uint64_t end = *address + trace_.allocations[id].bytes;
    const auto after = held_.lower_bound(*address);
    ASSERT_TRUE(after == held_.end() || after->first >= end) << "allocation " << id;
    ASSERT_TRUE(after == held_.begin() || std::prev(after)->second <= *address)
        << "allocation " << id;
    held_.emplace(*address, end);
    held_bytes_ += trace_.allocations[id].bytes;
    addresses_.emplace(id, *address);
    live_.push_back(id);
  }

  std::uint32_t take(std::vector<std::uint32_t>& from) {
    const std::size_t index = rng_.below(draws_++, from.size());
    const std::uint32_t id = from[index];
    from[index] = from.back();
    from.pop_back();
    return id;
  }

  void free_one(bool pending) {
    const std::uint32_t id = take(live_);
    policy_->free(id, pending);
    // From here on, the policy may wait for a pending block and give it out.
    const std::uint64_t address = addresses_.at(id);
    held_bytes_ -= trace_.allocations[id].bytes;
    held_.erase(address);
    if (pending) {
      pending_.push_back(id);
      if (policy_->counters().synchronisations == synchronised_) waiting_[id] = address;
    }
  }

  void complete_one() {
    const std::uint32_t id = take(pending_);
    waiting_.erase(id);
    policy_->complete(id);
  }

  void check() {
    const PolicyCounters now = policy_->counters();
    ASSERT_GE(now.reserved_bytes, held_bytes_);
    ASSERT_LE(now.peak_reserved_bytes, capacity_bytes_);
    ASSERT_LE(now.reserved_bytes, now.peak_reserved_bytes);
    if (now.synchronisations != synchronised_) waiting_.clear();
    synchronised_ = now.synchronisations;
    // Without a wait, no pending block was given out.
    for (const auto& [id, address] : waiting_) {
      const auto after = held_.upper_bound(address + trace_.allocations[id].bytes - 1);
      ASSERT_TRUE(after == held_.begin() || std::prev(after)->second <= address)
          << "pending " << id;
    }
  }

  const record::MemoryTrace& trace_;
  std::uint64_t capacity_bytes_;
  CounterRng rng_;
  std::unique_ptr<ReplayPolicy> policy_;
  std::uint64_t draws_ = 0;
  std::uint32_t next_id_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t synchronised_ = 0;
  std::map<std::uint64_t, std::uint64_t> held_;  // live: begin, end
  std::map<std::uint32_t, std::uint64_t> addresses_;
  std::map<std::uint32_t, std::uint64_t> waiting_;  // pending, and not waited for
  std::vector<std::uint32_t> live_;
  std::vector<std::uint32_t> pending_;
  Outcome outcome_;
};

class EveryPeer : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EveryPeer, GivesNoByteTwiceAndRepeatsExactly) {
  const NamedPolicy named = peer_policies()[GetParam()];
  std::size_t misses = 0;
  PolicyCounters sums;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const record::MemoryTrace trace = random_trace(seed, 1200);
    const std::uint64_t capacity_bytes = seed % 3 == 0 ? UINT64_MAX : (4 + seed) * kGiB;
    const Outcome first = Walk(named, trace, seed, capacity_bytes).run();
    if (HasFatalFailure()) return;
    const Outcome second = Walk(named, trace, seed, capacity_bytes).run();
    EXPECT_EQ(first.addresses, second.addresses);
    EXPECT_EQ(first.counters.peak_reserved_bytes, second.counters.peak_reserved_bytes);
    EXPECT_EQ(first.counters.reserved_bytes, 0u);
    sums.flushes += first.counters.flushes;
    sums.remaps += first.counters.remaps;
    sums.synchronisations += first.counters.synchronisations;
    sums.event_waits += first.counters.event_waits;
    for (const std::uint64_t address : first.addresses) misses += address == 0 ? 1 : 0;
  }
  // The sequences are hard enough: memory ran out, and the replica flushed and waited.
  EXPECT_GT(misses, 0u);
  EXPECT_GT(sums.flushes, 0u);
  EXPECT_GT(sums.synchronisations, 0u);
  EXPECT_EQ(sums.event_waits, 0u);
  EXPECT_EQ(sums.remaps, 0u);
}

INSTANTIATE_TEST_SUITE_P(Peers, EveryPeer, ::testing::Range<std::size_t>(0, 2),
                         [](const auto& peer) { return peer_policies()[peer.param].name; });

}  // namespace
}  // namespace sluice::replay
