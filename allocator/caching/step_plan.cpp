// plan_step() works in three stages.
//
// (1) find_lives() pairs each allocation with its free: in the same step, or at the place where the
//     step frees the same allocation of the step before. Allocations without such a free, or with
//     lives of a step or more, are not planned.
//
// (2) A step repeats, so the lives form a circle, but the packer needs a line. find_cut() cuts the
//     circle at the event with the fewest live bytes. Buffers that are live across the cut are
//     packed as if live for the whole step. That keeps the packing valid, and this cut makes their
//     total size smallest. pack_lifetimes() then assigns the offsets.
//
// (3) find_waits() replays the events over a map of the arena that holds the last release of each
//     range by stream. It goes round twice, so that the waits for buffers of the step before are
//     found too. For n events the cost is O(n log n), plus the ranges that each buffer overlaps and
//     the packer.
#include "allocator/caching/step_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "allocator/caching/block_space.hpp"
#include "base/error.hpp"

namespace sluice::allocator {
namespace {

// A buffer's life in indices of the step's events. An end >= the number of events lies in the next
// step.
struct Life {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
  StreamId stream = 0;
  std::vector<StreamId> uses;
};

struct Lives {
  std::vector<Life> lives;
  std::vector<std::uint32_t> life_of;  // index into lives, by number of the allocation
};

std::vector<const StepEvent*> allocations_of(const StepRecording& step) {
  std::vector<const StepEvent*> result(step.allocation_count);
  for (const StepEvent& event : step.events) {
    if (event.kind == StepEvent::Kind::kAlloc) result[event.number] = &event;
  }
  return result;
}

// Finds the lives of allocations with a known end. The end is known if the step frees the
// allocation, or frees the same allocation of the step before.
Lives find_lives(const StepRecording& before, const StepRecording& step) {
  const std::size_t count = step.allocation_count;
  const std::vector<const StepEvent*> old = allocations_of(before);
  const std::vector<const StepEvent*> now = allocations_of(step);
  std::vector<Life> lives(count);
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    const StepEvent& event = step.events[i];
    if (event.kind == StepEvent::Kind::kAlloc) {
      Life& life = lives[event.number];
      life.begin = i;
      life.bytes = event.bytes;
      life.stream = event.stream;
      continue;
    }
    if (event.number >= count) continue;
    Life& life = lives[event.number];
    if (event.steps_ago == 0) {
      life.end = i;
      life.uses = event.uses;
    } else if (life.end == 0 && event.number < old.size() &&
               old[event.number]->bytes == now[event.number]->bytes &&
               old[event.number]->stream == now[event.number]->stream) {
      life.end = step.events.size() + i;
      life.uses = event.uses;
    }
  }
  Lives result;
  result.life_of.assign(count, kNotPlanned);
  for (std::size_t n = 0; n < count; ++n) {
    // Not planned: never freed, or freed only after the next step has repeated the allocation.
    if (lives[n].end == 0 || lives[n].end - lives[n].begin >= step.events.size()) continue;
    result.life_of[n] = static_cast<std::uint32_t>(result.lives.size());
    result.lives.push_back(std::move(lives[n]));
  }
  return result;
}

// The event before which the fewest bytes are live: the circle of the step is cut open there.
std::uint64_t find_cut(std::span<const Life> lives, std::uint64_t length) {
  std::vector<std::int64_t> change(length + 1, 0);
  std::int64_t held = 0;  // live bytes before event 0
  for (const Life& life : lives) {
    const auto bytes = static_cast<std::int64_t>(life.bytes);
    change[life.begin] += bytes;
    if (life.end >= length) held += bytes;
    change[life.end % length] -= bytes;
  }
  std::uint64_t cut = 0;
  std::int64_t least = held;
  for (std::uint64_t i = 0; i + 1 < length; ++i) {
    held += change[i];
    if (held < least) {
      least = held;
      cut = i + 1;
    }
  }
  return cut;
}

// Rotates the lives so that they begin at the cut. A life across the cut becomes the whole step.
std::vector<packing::Lifetime> lifetimes_from(std::span<const Life> lives, std::uint64_t cut,
                                              std::uint64_t length) {
  std::vector<packing::Lifetime> lifetimes;
  lifetimes.reserve(lives.size());
  for (const Life& life : lives) {
    const std::uint64_t begin = (life.begin + length - cut) % length;
    const std::uint64_t end = begin + (life.end - life.begin);
    const bool across = end > length;
    lifetimes.push_back(across ? packing::Lifetime{0, length, life.bytes}
                               : packing::Lifetime{begin, end, life.bytes});
  }
  return lifetimes;
}

// The last releases of each range of the arena, by stream. The pieces tile the arena.
class LastUses {
 public:
  explicit LastUses(std::uint64_t arena_bytes) { pieces_[0] = {arena_bytes, {}}; }

  // Visits the last releases in [begin, end).
  template <typename Visit>
  void for_each(std::uint64_t begin, std::uint64_t end, Visit visit) {
    for (auto piece = split(begin); piece != pieces_.end() && piece->first < end; ++piece) {
      for (const auto& [stream, release] : piece->second.releases) visit(stream, release);
    }
  }
  // Records that `buffer` was freed as number `order` and was the last user of the range. It
  // replaces earlier releases, because the buffer has waited for all of them.
  void set(std::uint64_t begin, std::uint64_t end, std::span<const StreamId> streams,
           std::uint32_t buffer, std::uint64_t order) {
    split(end);
    auto piece = split(begin);
    pieces_.erase(std::next(piece), pieces_.lower_bound(end));
    piece->second.end = end;
    piece->second.releases.clear();
    for (const StreamId stream : streams) piece->second.releases[stream] = {buffer, order};
  }

  struct Release {
    std::uint32_t buffer = 0;
    std::uint64_t order = 0;
  };

 private:
  struct Piece {
    std::uint64_t end = 0;
    std::map<StreamId, Release> releases;
  };
  using Pieces = std::map<std::uint64_t, Piece>;

  // The piece that begins at `at`, after cutting one in two if necessary; end() at the arena's end.
  Pieces::iterator split(std::uint64_t at) {
    const auto after = pieces_.upper_bound(at);
    const auto piece = std::prev(after);
    if (piece->first == at || at >= piece->second.end) return piece->first == at ? piece : after;
    Piece right = piece->second;
    piece->second.end = at;
    return pieces_.emplace_hint(after, at, std::move(right));
  }

  Pieces pieces_;
};

std::vector<StreamId> streams_of(const Life& life) {
  std::vector<StreamId> streams{life.stream};
  for (const StreamId stream : life.uses) {
    if (stream != life.stream) streams.push_back(stream);
  }
  return streams;
}

// Fills in `waits` and `release_streams`.
void find_waits(std::span<const Life> lives, StepPlan& plan) {
  LastUses last(plan.arena_bytes);
  std::uint64_t order = 0;
  for (int round = 0; round < 2; ++round) {
    for (const StepPlan::Event& event : plan.events) {
      if (event.buffer == kNotPlanned) continue;
      PlannedBuffer& buffer = plan.buffers[event.buffer];
      const std::uint64_t end = buffer.offset + buffer.bytes;
      if (!event.is_alloc) {
        last.set(buffer.offset, end, streams_of(lives[event.buffer]), event.buffer, ++order);
        continue;
      }
      if (round == 0) continue;
      std::map<StreamId, LastUses::Release> latest;
      last.for_each(buffer.offset, end, [&](StreamId stream, const LastUses::Release& release) {
        if (stream == buffer.stream) return;
        LastUses::Release& kept = latest[stream];
        if (release.order > kept.order) kept = release;
      });
      for (const auto& [stream, release] : latest) {
        buffer.waits.push_back({release.buffer, stream});
        std::vector<StreamId>& streams = plan.buffers[release.buffer].release_streams;
        if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
          streams.push_back(stream);
        }
      }
    }
  }
}

}  // namespace

double matching_share(const StepRecording& a, const StepRecording& b) {
  std::map<std::pair<StreamId, std::uint64_t>, std::int64_t> surplus;
  for (const StepEvent& event : a.events) {
    if (event.kind == StepEvent::Kind::kAlloc) ++surplus[{event.stream, event.bytes}];
  }
  std::uint64_t common = 0;
  for (const StepEvent& event : b.events) {
    if (event.kind != StepEvent::Kind::kAlloc) continue;
    const auto found = surplus.find({event.stream, event.bytes});
    if (found == surplus.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  const std::uint32_t larger = std::max(a.allocation_count, b.allocation_count);
  return larger == 0 ? 0.0 : static_cast<double>(common) / larger;
}

StepPlan plan_step(const StepRecording& before, const StepRecording& step,
                   packing::PackingEffort effort) {
  StepPlan plan;
  if (step.events.empty()) return plan;
  const Lives found = find_lives(before, step);
  const std::uint64_t length = step.events.size();
  const std::uint64_t cut = find_cut(found.lives, length);
  const std::vector<packing::Lifetime> lifetimes = lifetimes_from(found.lives, cut, length);
  const packing::Packing packing =
      packing::pack_lifetimes(lifetimes, BlockSpace::kAlignment, effort);
  plan.arena_bytes = packing.capacity_bytes;
  plan.peak_live_bytes = packing.lower_bound_bytes;
  plan.buffers.resize(found.lives.size());
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    plan.buffers[b].offset = packing.offsets_bytes[b];
    plan.buffers[b].bytes = found.lives[b].bytes;
    plan.buffers[b].stream = found.lives[b].stream;
    plan.buffers[b].uses = found.lives[b].uses;
  }
  for (const StepEvent& event : step.events) {
    const bool is_alloc = event.kind == StepEvent::Kind::kAlloc;
    const std::uint32_t buffer =
        event.number < found.life_of.size() ? found.life_of[event.number] : kNotPlanned;
    if (!is_alloc) {
      if (buffer == kNotPlanned) continue;
      // Skip a free of the wrong step: an allocation of the step before with the number of one that
      // is freed in its own step, or the reverse.
      const bool in_step = found.lives[buffer].end < length;
      if (in_step != (event.steps_ago == 0)) continue;
    }
    plan.events.push_back({is_alloc, event.stream, buffer, event.bytes});
  }
  find_waits(found.lives, plan);
  return plan;
}

}  // namespace sluice::allocator
