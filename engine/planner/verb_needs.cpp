// Steps take what their packed schedules say. The other phases visit homes between steps
// (runtime/state_store.hpp): homes in pinned memory in place, all others through the I/O buffer.
// The window lies in the memory of the steps' staging, right after the persistent buffers.
#include "engine/planner/verb_needs.hpp"

#include <algorithm>
#include <vector>

#include "engine/checkpoint/huggingface_export.hpp"
#include "engine/runtime/state_store.hpp"

namespace sluice::planner {
namespace {

using runtime::MemoryNeed;
using schedule::StepKind;

bool is_home(const schedule::Buffer& buffer) {
  return buffer.persistent && buffer.role == schedule::BufferRole::kState && !buffer.log_copy;
}

// Whether any home of these kinds lies outside pinned memory.
template <class Wanted>
bool passes_window(const schedule::Schedule& training, const Wanted& wanted) {
  return std::any_of(
      training.buffers.begin(), training.buffers.end(), [&](const schedule::Buffer& buffer) {
        return is_home(buffer) && buffer.tier != Tier::kPinned && wanted(buffer.kind);
      });
}

MemoryNeed need_of(const schedule::StepSchedules& schedules, const schedule::StepOptions& options,
                   Verb verb) {
  std::vector<const schedule::Schedule*> run;
  for (const StepKind kind : schedule::kStepKinds) {
    if (schedule::has_step(options, kind) && verb_of(kind) == verb) run.push_back(&schedules[kind]);
  }
  return runtime::memory_need(run, 0);
}

}  // namespace

VerbPeaks verb_peaks(const schedule::StepSchedules& schedules, const schedule::StepOptions& options,
                     const MemoryNeed& whole, bool converts, const schedule::RankView& view,
                     const schedule::StageView& pipeline) {
  const schedule::Schedule& training = schedules[StepKind::kTraining];
  const std::uint64_t homes_end = runtime::persistent_pinned_bytes(training);
  const MemoryNeed resting = runtime::resting_need(training);
  const auto moves_state = [&](bool through_window, std::uint64_t bytes) {
    MemoryNeed need = resting;
    if (through_window) need.pinned_bytes = std::max(need.pinned_bytes, homes_end + bytes);
    return need;
  };
  const auto window = runtime::StateStore::kWindowBytes;
  const bool all = passes_window(training, [](StateKind kind) {
    return kind != StateKind::kGradient;  // made anew by each step
  });
  const bool has_stages = !pipeline.is_alone();
  const bool weights =
      view.shards_weights() || has_stages ||
      passes_window(training, [](StateKind kind) { return kind == StateKind::kWeight; });
  VerbPeaks peaks{};
  for (const Verb verb : kVerbs) {
    MemoryNeed need = resting;
    const bool steps =
        verb == Verb::kTrain || verb == Verb::kEvaluate || (verb == Verb::kSave && options.durable);
    if (steps) {
      need.include(need_of(schedules, options, verb));
    } else if (verb == Verb::kExport) {
      need.include(moves_state(weights, window));
      need.include(
          moves_state(converts, checkpoint::export_piece_bytes(whole.pinned_bytes - homes_end)));
    } else {
      const bool gathers = verb == Verb::kSave && (view.shards_optimizer() || has_stages);
      need.include(moves_state(all || gathers, window));
    }
    need.fixed = whole.fixed;
    peaks[static_cast<std::size_t>(verb)] = need.peak_bytes();
  }
  return peaks;
}

}  // namespace sluice::planner
