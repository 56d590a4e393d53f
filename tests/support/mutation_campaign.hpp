// Damages accepted schedules and judges the mutants: each that validate accepts must compute the
// same terms in every timing tried.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/mutate_schedule.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::testing {

struct Tally {
  int made = 0;
  int refused = 0;
  int benign = 0;  // accepted, and the interpreter agrees
};

inline bool harmless(const schedule::Schedule& mutant, const schedule::Interpretation& original,
                     std::uint64_t seed, std::size_t random_count) {
  for (const schedule::InterpretOptions& timing : schedule::adverse_timings(seed, random_count)) {
    const schedule::Interpretation values = schedule::interpret(mutant, timing);
    if (!values.errors.empty() || !values.same_values(original)) return false;
  }
  return true;
}

class MutationCampaign {
 public:
  // only: the kinds to try; all if it is empty.
  void attack(const schedule::Schedule& schedule, std::uint64_t seed, std::size_t rounds,
              const std::vector<Mutation>& only = {}) {
    ASSERT_TRUE(schedule::validate(schedule).empty());
    const schedule::Interpretation original = schedule::interpret(schedule);
    ASSERT_TRUE(original.errors.empty());
    Mutator mutator(schedule, seed);
    for (std::size_t round = 0; round < sweep(rounds); ++round) {
      for (std::size_t kind = 0; kind < kMutationCount; ++kind) {
        const auto mutation = static_cast<Mutation>(kind);
        if (!only.empty() && std::find(only.begin(), only.end(), mutation) == only.end()) continue;
        const std::optional<schedule::Schedule> mutant = mutator.mutate(mutation);
        if (mutant) judge(*mutant, original, kind, seed + round);
      }
    }
  }
  void print() const {
    for (std::size_t kind = 0; kind < kMutationCount; ++kind) {
      const Tally& tally = tallies_[kind];
      std::printf("%-18s made %6d, refused %6d, benign %6d\n",
                  std::string(kMutationNames[kind]).c_str(), tally.made, tally.refused,
                  tally.benign);
    }
  }
  const Tally& tally(Mutation mutation) const {
    return tallies_[static_cast<std::size_t>(mutation)];
  }
  int made() const {
    int sum = 0;
    for (const Tally& tally : tallies_) sum += tally.made;
    return sum;
  }

 private:
  void judge(const schedule::Schedule& mutant, const schedule::Interpretation& original,
             std::size_t kind, std::uint64_t seed) {
    Tally& tally = tallies_[kind];
    ++tally.made;
    if (!schedule::validate(mutant).empty()) {
      ++tally.refused;
      return;
    }
    ++tally.benign;
    EXPECT_TRUE(harmless(mutant, original, seed, 4))
        << "accepted but harmful: " << kMutationNames[kind] << " of " << seed;
  }

  std::array<Tally, kMutationCount> tallies_{};
};

}  // namespace sluice::testing
