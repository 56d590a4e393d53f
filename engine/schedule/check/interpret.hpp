// Runs a schedule over symbolic values, under any timing of its lanes. For tests only.
//
// Memory holds terms (128-bit hashes of a value's history) at the actual places of the buffers.
// Copies move terms; compute makes new terms from those that it reads. Two schedules that end with
// equal terms compute the same bits if the kernels are deterministic. Tests prove law 1 in this way
// without a kernel, and judge mutations of schedules. It shares no code with link, pack or
// validate.
//
// Terms do not depend on placement. Model state is elementwise: a piece of a unit carries the
// unit's term and its element range, and a window that its pieces tile has that one term. A
// Recompute makes the same terms as its Forward. Values are named by role, kind, unit and
// micro-batch, never by buffer, chunk, tier or rank.
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

// The progress of lanes relative to each other. Every timing respects lane order, deps and
// messages.
enum class Timing : std::uint8_t {
  kListOrder,  // one instruction at a time, as listed where possible
  kRandom,     // any possible start or end next
  kOverlap,    // everything starts as early and ends as late as it may
  kRunAhead,   // `lane` does whatever it can before any other lane moves
  kHoldBack,   // `lane` moves only when nothing else can
};

// The memory that a schedule leaves for the next one.
struct CarriedState {
  struct Run {
    std::uint64_t begin = 0;  // elements of the home
    std::uint64_t end = 0;
    Term term;
    std::int32_t place = 0;  // of the rank that holds it, in a tensor or context group
  };
  using State = std::map<std::pair<StateKind, std::int32_t>, std::vector<Run>>;
  State state;  // by kind and unit
  // Speculative steps only: the state before the step, which stays in the homes.
  State found;
  std::optional<Term> clip;  // the clip factor, if gradients wait for their update

  // The state for the next schedule if the update is dropped and homes and shadows keep their
  // roles.
  CarriedState given_up() const;
};

struct InterpretOptions {
  Timing timing = Timing::kListOrder;
  Lane lane = Lane::kCompute;  // of kRunAhead and kHoldBack
  std::uint64_t seed = 0;
  // The clip factor is one: an update that reads it makes the same term as one without it.
  bool clip_accepted = false;
  std::uint32_t storage_depth = 8;  // instructions in flight of a storage lane
  bool rendezvous = false;          // a send ends only when its receive has begun
  // The memory that the schedule before left; null: symbols for arbitrary values. Tokens are those
  // of `step`.
  const CarriedState* before = nullptr;
  std::uint64_t step = 0;
};

struct Interpretation {
  // Empty, or: reads of freed, never written or overwritten memory, overlapping uses, deadlock.
  std::vector<std::string> errors;
  // State at exit, by kind and unit (homes named in `exit`, merged over chunks, tiers and ranks).
  std::map<std::pair<StateKind, std::int32_t>, Term> exit;
  // Speculative steps: the state before the step, likewise.
  std::map<std::pair<StateKind, std::int32_t>, Term> found;
  // The state that Commit found at its places on storage, likewise.
  std::map<std::pair<StateKind, std::int32_t>, Term> committed;
  std::map<std::int32_t, Term> losses;  // by micro-batch
  std::optional<Term> norm;             // the input of ClipFactor
  CarriedState after;                   // the content of the homes named in `exit`

  bool same_values(const Interpretation& other) const {
    return exit == other.exit && found == other.found && committed == other.committed &&
           losses == other.losses && norm == other.norm && after.clip == other.after.clip;
  }
};

Interpretation interpret(const Schedule& schedule, const InterpretOptions& options = {});

// List order, overlap, every lane run ahead and held back, and `random_count` random ones.
std::vector<InterpretOptions> adverse_timings(std::uint64_t seed, std::size_t random_count);

}  // namespace sluice::schedule
