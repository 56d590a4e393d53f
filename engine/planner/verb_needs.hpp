// The memory that each phase of a run takes of the memory that the run holds.
//
// A run obtains all its memory once, the most that any phase takes, and holds it to its end. So no
// phase can fail for memory later on. A phase's need tells which of them a budget is spent for.
//
//   device   slots and arena up to the last place in use
//   pinned   homes, staging, and the I/O buffer where state passes through it
//   storage  homes and spilled activations; a durable run's log
//
// Homes are in use in every phase. Reading and writing of state goes through pinned memory in
// pieces; buffers on the heap are at most kMostHeapBytes, whatever the model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/planner/price/tier_bytes.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_kind.hpp"
#include "engine/schedule/orders/stage_view.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::planner {

enum class Verb : std::uint8_t {
  kLoad,      // fills the homes with initial values
  kResume,    // fills the homes with the state of an earlier run
  kTrain,     // steps, the first one and drains and redos included
  kEvaluate,  // losses alone
  kSave,      // a checkpoint or a commit; a step that commits counts here
  kExport,    // the final weights, their hash, and the directory for transformers
};
inline constexpr std::size_t kVerbCount = 6;
inline constexpr std::array<Verb, kVerbCount> kVerbs{Verb::kLoad,     Verb::kResume, Verb::kTrain,
                                                     Verb::kEvaluate, Verb::kSave,   Verb::kExport};

constexpr std::string_view verb_name(Verb verb) {
  constexpr std::array<std::string_view, kVerbCount> kNames{"load",     "resume", "train",
                                                            "evaluate", "save",   "export"};
  return kNames[static_cast<std::size_t>(verb)];
}

// The phase that runs steps of this kind.
constexpr Verb verb_of(schedule::StepKind kind) {
  switch (kind) {
    case schedule::StepKind::kEvaluation:
      return Verb::kEvaluate;
    case schedule::StepKind::kSaving:
    case schedule::StepKind::kSave:
      return Verb::kSave;
    case schedule::StepKind::kTraining:
    case schedule::StepKind::kFirst:
    case schedule::StepKind::kDrain:
    case schedule::StepKind::kRedo:
      break;
  }
  return Verb::kTrain;
}

// By phase.
using VerbPeaks = std::array<TierBytes, kVerbCount>;

// whole: the need of the run. converts: the export also makes the directory for transformers. view and
// pipeline: of the rank; it gathers shards, and the state of other stages, through the I/O buffer.
VerbPeaks verb_peaks(const schedule::StepSchedules& schedules, const schedule::StepOptions& options,
                     const runtime::MemoryNeed& whole, bool converts,
                     const schedule::RankView& view, const schedule::StageView& pipeline);

}  // namespace sluice::planner
