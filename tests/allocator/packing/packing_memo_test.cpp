#include "allocator/packing/packing_memo.hpp"

#include <gtest/gtest.h>

#include "allocator/packing/arena_packing.hpp"
#include "base/rng.hpp"

namespace sluice::packing {
namespace {

std::vector<Lifetime> drawn(std::uint64_t seed, std::uint64_t shift) {
  const CounterRng random(seed, stream_of("packing_memo"));
  std::vector<Lifetime> list;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t lower = random.below(3 * i, 50);
    // Positions move apart, as if transfers stood between them.
    list.push_back({lower * (1 + shift), (lower + 1 + random.below(3 * i + 1, 9)) * (1 + shift),
                    1 + random.below(3 * i + 2, 1000)});
  }
  return list;
}

Packing packed(const std::vector<Lifetime>& list, std::uint64_t enough, PackingMemo* memo) {
  return pack_lifetimes(list, 1, PackingEffort::kQuick, enough, 0, memo);
}

TEST(PackingMemo, AnswersAreThoseOfTheSearch) {
  PackingMemo memo;
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      for (const std::uint64_t enough : {0, 100'000}) {
        const std::vector<Lifetime> list = drawn(seed, static_cast<std::uint64_t>(round));
        const Packing with = packed(list, enough, &memo);
        EXPECT_EQ(with.offsets_bytes, packed(list, enough, nullptr).offsets_bytes);
        check_packing(list, with, 1);
      }
    }
  }
  EXPECT_GE(memo.hits(), 2u * 6 * 2);  // each question was new in the first round only
}

// Boxes alone do not tell the answer.
TEST(PackingMemo, OtherTargetsAreOtherQuestions) {
  PackingMemo memo;
  std::uint64_t differ = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::vector<Lifetime> list = drawn(seed, 0);
    const Packing best = packed(list, 0, &memo);
    const Packing any = packed(list, 1'000'000, &memo);
    EXPECT_LE(best.capacity_bytes, any.capacity_bytes);
    differ += best.offsets_bytes != any.offsets_bytes ? 1 : 0;
  }
  EXPECT_GT(differ, 0u);
}

}  // namespace
}  // namespace sluice::packing
