#include "allocator/packing/exact_packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/packing/arena_packing.hpp"
#include "base/rng.hpp"

namespace sluice::packing {
namespace {

constexpr std::uint64_t kManyLooks = 1'000'000'000;

bool share_bytes(const SkylineBox& a, SkylineUnits offset_a, const SkylineBox& b,
                 SkylineUnits offset_b) {
  return a.lower < b.upper && b.lower < a.upper && offset_a < offset_b + b.size &&
         offset_b < offset_a + a.size;
}

// Tries every offset of every box.
bool can_be_packed(const SkylineProblem& problem, std::vector<SkylineUnits>& offsets,
                   std::size_t next = 0) {
  if (next == problem.boxes.size()) return true;
  const SkylineBox& box = problem.boxes[next];
  const bool fixed = box.fixed_offset >= 0;
  const SkylineUnits first = fixed ? box.fixed_offset : 0;
  const SkylineUnits last = fixed ? box.fixed_offset : problem.capacity - box.size;
  for (SkylineUnits offset = first; offset <= last; ++offset) {
    bool apart = true;
    for (std::size_t i = 0; i < next && apart; ++i) {
      apart = !share_bytes(box, offset, problem.boxes[i], offsets[i]);
    }
    if (!apart) continue;
    offsets[next] = offset;
    if (can_be_packed(problem, offsets, next + 1)) return true;
  }
  return false;
}

void expect_packed(const SkylineProblem& problem, const std::vector<SkylineUnits>& offsets) {
  ASSERT_EQ(offsets.size(), problem.boxes.size());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const SkylineBox& box = problem.boxes[i];
    EXPECT_GE(offsets[i], 0);
    EXPECT_LE(offsets[i] + box.size, problem.capacity);
    EXPECT_TRUE(box.fixed_offset < 0 || offsets[i] == box.fixed_offset);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(share_bytes(box, offsets[i], problem.boxes[j], offsets[j])) << i << ' ' << j;
    }
  }
}

// Sizes and lifetimes are few, so that twins and boxes of one lifetime are common.
SkylineProblem random_problem(std::uint64_t seed, std::size_t count, std::size_t fixed) {
  const CounterRng rng(seed, stream_of("skyline"));
  SkylineProblem problem;
  problem.position_count = 6;
  problem.capacity = static_cast<SkylineUnits>(8 + rng.below(0, 5));
  for (std::uint64_t i = 1; problem.boxes.size() < count; ++i) {
    const std::uint64_t start = rng.below(4 * i, 5);
    const std::uint64_t end = start + 1 + rng.below(4 * i + 1, 6 - start);
    SkylineBox box{static_cast<std::int32_t>(start), static_cast<std::int32_t>(end),
                   static_cast<SkylineUnits>(1 + rng.below(4 * i + 2, 4)), -1};
    if (problem.boxes.size() < fixed) {
      const auto room =
          static_cast<std::uint64_t>(problem.capacity) + 1 - static_cast<std::uint64_t>(box.size);
      box.fixed_offset = static_cast<SkylineUnits>(rng.below(4 * i + 3, room));
      const bool apart =
          std::all_of(problem.boxes.begin(), problem.boxes.end(), [&](const SkylineBox& other) {
            return !share_bytes(box, box.fixed_offset, other, other.fixed_offset);
          });
      if (!apart) continue;
    }
    problem.boxes.push_back(box);
  }
  return problem;
}

TEST(SkylineSearch, AgreesWithTryingEveryOffset) {
  int packed = 0;
  int impossible = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const SkylineProblem problem = random_problem(seed, 5 + seed % 5, seed % 3);
    std::vector<SkylineUnits> offsets(problem.boxes.size());
    const bool expected = can_be_packed(problem, offsets);
    SkylineSearch search(problem, kManyLooks);
    const SkylineOutcome outcome = search.run();
    EXPECT_EQ(outcome, expected ? SkylineOutcome::kPacked : SkylineOutcome::kImpossible) << seed;
    if (outcome == SkylineOutcome::kPacked) expect_packed(problem, search.offsets());
    (expected ? packed : impossible) += 1;
  }
  EXPECT_GT(packed, 150);
  EXPECT_GT(impossible, 150);
}

TEST(SkylineSearch, GivesUpWithinItsBudget) {
  SkylineProblem problem;
  problem.position_count = 1;
  for (int i = 0; i < 40; ++i) {
    problem.boxes.push_back({0, 1, static_cast<SkylineUnits>(5 + 2 * (i % 7)), -1});
    problem.capacity += problem.boxes.back().size;
  }
  SkylineSearch enough(problem, kManyLooks);
  EXPECT_EQ(enough.run(), SkylineOutcome::kPacked);
  const std::uint64_t budget = enough.work() / 2;
  SkylineSearch half(problem, budget);
  EXPECT_EQ(half.run(), SkylineOutcome::kGaveUp);
  EXPECT_LT(half.work(), budget + 1000);
}

struct Cut {
  std::vector<Box> boxes;
  std::vector<std::uint64_t> durations;

  std::vector<Lifetime> lifetimes(std::uint64_t unit_bytes) const {
    std::vector<Lifetime> result;
    for (const Box& box : boxes) {
      result.push_back({static_cast<std::uint64_t>(box.lower),
                        static_cast<std::uint64_t>(box.upper), unit_bytes * box.bytes});
    }
    return result;
  }
};

// Cuts a rectangle of `positions` and `bytes` into boxes, which fill it again without a gap.
Cut cut_rectangle(std::uint64_t seed, std::size_t count, std::int32_t positions,
                  std::uint64_t bytes) {
  const CounterRng rng(seed, stream_of("cut"));
  struct Part {
    std::int32_t lower, upper;
    std::uint64_t bytes;
  };
  std::vector<Part> parts{{0, positions, bytes}};
  for (std::uint64_t draw = 0; parts.size() < count; draw += 3) {
    Part& part = parts[rng.below(draw, parts.size())];
    const auto length = static_cast<std::uint64_t>(part.upper - part.lower);
    Part other = part;
    if (rng.below(draw + 1, 2) == 0) {
      if (length < 2) continue;
      part.upper = other.lower =
          part.lower + static_cast<std::int32_t>(1 + rng.below(draw + 2, length - 1));
    } else {
      if (part.bytes < 2) continue;
      part.bytes = 1 + rng.below(draw + 2, part.bytes - 1);
      other.bytes -= part.bytes;
    }
    parts.push_back(other);
  }
  Cut cut;
  for (const Part& part : parts) {
    cut.boxes.push_back({part.lower, part.upper, part.bytes});
    cut.durations.push_back(static_cast<std::uint64_t>(part.upper - part.lower));
  }
  return cut;
}

TEST(ExactPacking, FillsRectanglesThatWereCutUp) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Cut cut = cut_rectangle(seed, 40 + 5 * seed, 60, 1000);
    const ExactPacking packing = pack_exactly(cut.boxes, cut.durations, 60, 1000, kManyLooks);
    ASSERT_EQ(packing.outcome, SkylineOutcome::kPacked) << seed;
    check_packing(cut.lifetimes(1), {packing.offsets_bytes, 1000, 1000}, 1);
    // The boxes fill every byte. One byte less is impossible, and the search finds that at once.
    EXPECT_EQ(pack_exactly(cut.boxes, cut.durations, 60, 999, kManyLooks).outcome,
              SkylineOutcome::kImpossible);
  }
}

TEST(ExactPacking, IsAPureFunctionOfItsInputAndHasABudget) {
  const Cut cut = cut_rectangle(3, 150, 100, 5000);
  const auto pack = [&](std::uint64_t budget) {
    return pack_exactly(cut.boxes, cut.durations, 100, 5000, budget);
  };
  EXPECT_EQ(pack(1000).outcome, SkylineOutcome::kGaveUp);
  EXPECT_EQ(pack(kManyLooks).offsets_bytes, pack(kManyLooks).offsets_bytes);
  const std::vector<Box> none;
  EXPECT_EQ(pack_exactly(none, {}, 0, 0, 0).outcome, SkylineOutcome::kPacked);
}

TEST(ExactPacking, SizesAreCountedInTheirCommonDivisor) {
  constexpr std::uint64_t kUnit = std::uint64_t{1} << 50;
  const std::vector<Box> boxes{{0, 2, 2 * kUnit}, {1, 3, 3 * kUnit}, {2, 4, 2 * kUnit}};
  const std::vector<std::uint64_t> durations{2, 2, 2};
  EXPECT_EQ(pack_exactly(boxes, durations, 4, 5 * kUnit, kManyLooks).outcome,
            SkylineOutcome::kPacked);
  EXPECT_EQ(pack_exactly(boxes, durations, 4, 5 * kUnit - 1, kManyLooks).outcome,
            SkylineOutcome::kImpossible);
  // The sizes have no common divisor and too many bits.
  const std::vector<Box> wide{{0, 1, kUnit}, {0, 1, kUnit + 1}};
  EXPECT_EQ(pack_exactly(wide, {{1, 1}}, 1, 4 * kUnit, kManyLooks).outcome,
            SkylineOutcome::kGaveUp);
}

TEST(ArenaPacking, ThoroughReachesBoundsThatOrdersMiss) {
  int quick_misses = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Cut cut = cut_rectangle(100 + seed, 120, 80, 4096);
    const std::vector<Lifetime> lifetimes = cut.lifetimes(256);
    const Packing quick = pack_lifetimes(lifetimes, 256);
    const Packing thorough = pack_lifetimes(lifetimes, 256, PackingEffort::kThorough);
    check_packing(lifetimes, thorough, 256);
    EXPECT_EQ(thorough.capacity_bytes, thorough.lower_bound_bytes) << seed;
    if (quick.capacity_bytes > quick.lower_bound_bytes) ++quick_misses;
    // The search stops at `enough_bytes`.
    const Packing enough =
        pack_lifetimes(lifetimes, 256, PackingEffort::kThorough, quick.capacity_bytes);
    EXPECT_LE(enough.capacity_bytes, quick.capacity_bytes) << seed;
    EXPECT_GE(enough.capacity_bytes, thorough.capacity_bytes) << seed;
  }
  EXPECT_GT(quick_misses, 4);
}

// The least capacity, 7, is one above the live sum, so there is no capacity between to try.
TEST(ArenaPacking, ThoroughEndsIfTheBoundIsOutOfReach) {
  const std::vector<Lifetime> lifetimes{
      {2, 4, 1}, {3, 4, 1}, {4, 6, 3}, {5, 7, 3}, {0, 1, 1}, {1, 3, 3}, {2, 5, 1}, {6, 7, 1},
      {6, 7, 1}, {3, 5, 1}, {0, 1, 1}, {6, 7, 1}, {1, 2, 2}, {1, 3, 1}, {3, 5, 1}, {0, 1, 3}};
  const Packing packing = pack_lifetimes(lifetimes, 1, PackingEffort::kThorough);
  check_packing(lifetimes, packing, 1);
  EXPECT_EQ(packing.lower_bound_bytes, 6u);
  EXPECT_EQ(packing.capacity_bytes, 7u);
}

}  // namespace
}  // namespace sluice::packing
