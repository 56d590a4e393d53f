// Measures how much of its memory a run has in use in each phase: the ends of the places that
// RunMemory handed out for it. The plan says the same beforehand (planner/verb_needs.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "engine/planner/verb_needs.hpp"
#include "engine/runtime/run_memory.hpp"

namespace sluice::train {

class VerbUse {
 public:
  // Nothing for phases that have not run.
  using Peaks = std::array<std::optional<planner::TierBytes>, planner::kVerbCount>;

  // resting: of the homes, which every phase holds, and of a durable run's log.
  explicit VerbUse(const runtime::MemoryNeed& resting) : resting_(resting) {
    programs_.fill(resting);
  }

  // A program of `verb` was handed out these places. All programs of a phase count once it runs.
  void add_program(planner::Verb verb, const runtime::MemoryNeed& handed_out) {
    programs_[static_cast<std::size_t>(verb)].include(handed_out);
  }
  void note_steps(planner::Verb verb) { note(verb, programs_[static_cast<std::size_t>(verb)]); }
  // State was visited between steps.
  void note_visit(planner::Verb verb, const runtime::MemoryNeed& handed_out) {
    runtime::MemoryNeed use = resting_;
    use.include(handed_out);
    note(verb, use);
  }
  const Peaks& peaks() const { return peaks_; }

 private:
  void note(planner::Verb verb, const runtime::MemoryNeed& use) {
    const planner::TierBytes bytes = use.peak_bytes();
    std::optional<planner::TierBytes>& most = peaks_[static_cast<std::size_t>(verb)];
    if (!most) most = planner::TierBytes{};
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      (*most)[tier] = std::max((*most)[tier], bytes[tier]);
    }
  }

  runtime::MemoryNeed resting_;
  std::array<runtime::MemoryNeed, planner::kVerbCount> programs_;
  Peaks peaks_;
};

}  // namespace sluice::train
