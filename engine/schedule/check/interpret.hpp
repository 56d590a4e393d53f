// Runs a schedule over symbolic values: what would be computed, whatever the timing.
//
// Memory holds terms (128-bit hashes of how a value came about) at the actual places that the
// schedule gave its buffers; copies move terms, compute makes new ones from what it reads. Two
// schedules that end with equal terms compute the same bits wherever the kernels are deterministic:
// this is how law 1 is proved without a kernel, and how mutations of schedules are judged. Shares
// no code with link, pack or validate.
//
// What makes terms independent of placement: model state is elementwise (a piece of a unit carries
// the unit's term and its element range; a window that its pieces tile has that one term); a
// Recompute makes what Forward makes; values are named by role, kind, unit and micro-batch, never
// by buffer, chunk, tier or rank.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct Term {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Term&) const = default;
};

// How the lanes progress relative to each other. Every one respects lane order, deps and messages.
enum class Timing : std::uint8_t {
  kListOrder,  // one instruction at a time, as listed where possible
  kRandom,     // any possible start or end next
  kOverlap,    // everything starts as early and ends as late as it may
  kRunAhead,   // `lane` does whatever it can before any other lane moves
  kHoldBack,   // `lane` moves only when nothing else can
};

// What a schedule leaves in memory for the next one, as it lies there.
struct CarriedState {
  struct Run {
    std::uint64_t begin = 0;  // elements of the home
    std::uint64_t end = 0;
    Term term;
  };
  using State = std::map<std::pair<StateKind, std::int32_t>, std::vector<Run>>;
  State state;  // by kind and unit
  // Where what was made lies in shadows: what was found, in the homes as ever.
  State found;
  std::optional<Term> clip;  // the clip factor, where gradients wait for their update

  // What the next schedule finds where the shadows do not take the place of the homes.
  CarriedState given_up() const;
};

struct InterpretOptions {
  Timing timing = Timing::kListOrder;
  Lane lane = Lane::kCompute;  // of kRunAhead and kHoldBack
  std::uint64_t seed = 0;
  // Guarded instructions whose guard is not taken have no effect.
  std::array<bool, kGuardCount> guards_taken{true, true, true, true};
  // The clip factor turns out to be one: an update that reads it makes what one without it makes.
  bool clip_accepted = false;
  std::uint32_t storage_depth = 8;  // instructions in flight of a storage lane
  bool rendezvous = false;          // a send ends only when its receive has begun
  // What the schedule before has left; null: symbols that stand for anything. Tokens are of `step`.
  const CarriedState* before = nullptr;
  std::uint64_t step = 0;
};

struct Interpretation {
  // Empty, or: reads of freed, never written or overwritten memory, overlapping uses, deadlock.
  std::vector<std::string> errors;
  // State at exit, by kind and unit (homes named in `exit`, merged over chunks, tiers and ranks).
  std::map<std::pair<StateKind, std::int32_t>, Term> exit;
  // State as it was found, where what was made lies in shadows; likewise.
  std::map<std::pair<StateKind, std::int32_t>, Term> found;
  // What Commit found where it is kept, likewise.
  std::map<std::pair<StateKind, std::int32_t>, Term> committed;
  std::map<std::int32_t, Term> losses;  // by micro-batch
  std::optional<Term> norm;             // what ClipFactor saw
  CarriedState after;                   // what lies in the homes named in `exit`

  bool same_values(const Interpretation& other) const {
    return exit == other.exit && found == other.found && committed == other.committed &&
           losses == other.losses && norm == other.norm && after.clip == other.after.clip;
  }
};

Interpretation interpret(const Schedule& schedule, const InterpretOptions& options = {});

// List order, overlap, every lane run ahead and held back, and `random_count` random ones.
std::vector<InterpretOptions> adverse_timings(std::uint64_t seed, std::size_t random_count);

}  // namespace sluice::schedule
