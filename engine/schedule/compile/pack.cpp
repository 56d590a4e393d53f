// Gives every buffer a place, in three steps.
//
// Persistent buffers come first, one after another in list order. Transient buffers are then a
// packing problem: each has a size and a lifetime in list positions, and two that are alive
// together must not overlap (allocator/packing). Windows are packed in units of slots, other
// buffers in bytes; where both share the device they are packed together. Tens of thousands of
// staging pieces are first merged into a few boxes by ring (ring_boxes.hpp).
//
// A packing by list positions is only safe if memory changes hands in that order. So the last step
// walks the transient buffers by birth, notes for each byte range who held it just before, and
// makes the first writers of a buffer wait for the Release of those holders.
#include "engine/schedule/compile/pack.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/packing/arena_packing.hpp"
#include "base/error.hpp"
#include "engine/schedule/compile/lane_clocks.hpp"
#include "engine/schedule/compile/ring_boxes.hpp"

namespace sluice::schedule {
namespace {

// Windows and arena in one memory: the packing stops at the bound plus 1/256 of it.
constexpr std::uint64_t kSharedSlack = 256;
// Rings: it stops at the bound plus 1/1024 of it.
constexpr std::uint64_t kRingSlack = 1024;
// Where there are many pieces, no smaller boxes are tried from the bound plus 1/256 on.
constexpr std::uint64_t kManyPiecesSlack = 256;
constexpr std::size_t kManyPieces = 8192;
// The most boxes of single places that single pieces follow, and the most single pieces where
// packings are only compared, and otherwise. Packing them takes the time of comparing each with all
// that live next to it.
constexpr std::size_t kMostPlaces = 8192;
constexpr std::size_t kMostSinglePieces = 8192;
constexpr std::size_t kMostExactPieces = 32768;
// Rings that pack itself makes have numbers from here on.
constexpr std::int32_t kFirstGroup = 1 << 16;

// List positions of a transient buffer's first write and of its Release.
struct Life {
  InstructionId birth = kNoId;
  InstructionId release = kNoId;
};

std::vector<Life> lives_of(const Schedule& schedule) {
  std::vector<Life> lives(schedule.buffers.size());
  for (const Instruction& instruction : schedule.instructions) {
    for (const Use& use : instruction.writes) {
      Life& life = lives.at(use.buffer);
      if (instruction.op == Op::kRelease) {
        life.release = instruction.id;
      } else if (life.birth == kNoId) {
        life.birth = instruction.id;
      }
    }
    if (instruction.op != Op::kRelease) continue;
    for (const Use& use : instruction.reads) lives.at(use.buffer).release = instruction.id;
  }
  for (const Buffer& buffer : schedule.buffers) {
    const Life& life = lives[buffer.id];
    SLUICE_CHECK_MSG(buffer.persistent || (life.birth < life.release && life.release != kNoId),
                     "transient buffer " + std::to_string(buffer.id) + " (" +
                         std::string(role_name(buffer.role)) +
                         ") needs a first write and a Release after it");
  }
  return lives;
}

// The last holder of each byte of one memory. Ranges are half-open and do not overlap.
class Occupancy {
 public:
  // Appends the last holders of [begin, end) to `before`, then gives the range to `holder`.
  void take(std::uint64_t begin, std::uint64_t end, BufferId holder,
            std::vector<BufferId>& before) {
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) --it;
    // Mostly a place passes on as it is.
    if (it != ranges_.end() && it->first == begin && it->second.end == end) {
      before.push_back(std::exchange(it->second.holder, holder));
      return;
    }
    while (it != ranges_.end() && it->first < end) {
      const std::uint64_t first = it->first;
      const Held held = it->second;
      if (held.end <= begin) {
        ++it;
        continue;
      }
      before.push_back(held.holder);
      it = ranges_.erase(it);
      if (first < begin) ranges_.emplace(first, Held{begin, held.holder});
      if (held.end > end) it = ranges_.emplace(end, held).first;
    }
    ranges_[begin] = Held{end, holder};
  }

 private:
  struct Held {
    std::uint64_t end;
    BufferId holder;
  };
  std::map<std::uint64_t, Held> ranges_;  // by begin
};

class Packer {
 public:
  Packer(Schedule& schedule, std::uint64_t alignment_bytes, packing::PackingEffort effort,
         packing::PackingMemo* memo)
      : schedule_(schedule),
        alignment_bytes_(alignment_bytes),
        effort_(effort),
        memo_(memo),
        lives_(lives_of(schedule)) {}

  void place_buffers() {
    schedule_.slot_count = 0;
    schedule_.device_arena_bytes = 0;
    schedule_.pinned_arena_bytes = 0;
    std::uint64_t storage_bytes = 0;
    for (std::int32_t rank = 0; rank < schedule_.ranks; ++rank) {
      pack_device(rank);
      const std::uint64_t pinned = pack_arena(rank, Tier::kPinned, kDirectAlignmentBytes);
      schedule_.pinned_arena_bytes = std::max(schedule_.pinned_arena_bytes, pinned);
      storage_bytes =
          std::max(storage_bytes, pack_arena(rank, Tier::kStorage, kDirectAlignmentBytes));
    }
    schedule_.peak_bytes = packed_bytes(schedule_, storage_bytes);
  }

  // Memory passes from buffer to buffer. A buffer's writers wait for the Release of its immediate
  // predecessors in memory; these have waited for theirs.
  void order_reuse() {
    const Holders before = holders_before();
    LaneClocks clocks(schedule_);
    std::vector<InstructionId> candidates;
    for (Instruction& instruction : schedule_.instructions) {
      if (instruction.op != Op::kRelease) {
        for (const Use& use : instruction.writes) {
          for (const BufferId holder : before.of(use.buffer)) {
            candidates.push_back(lives_[holder].release);
          }
        }
      }
      add_deps(clocks, instruction, candidates);
    }
  }

 private:
  packing::Lifetime lifetime_of(const Buffer& buffer, std::uint64_t size) const {
    const Life& life = lives_[buffer.id];
    return packing::Lifetime{life.birth, std::uint64_t{life.release} + 1, size};
  }

  void pack_device(std::int32_t rank) {
    Transients windows = place_persistent_windows(rank);
    const std::uint64_t slots_bytes = windows.base * schedule_.slot_bytes;
    Transients others =
        place_persistent(rank, Tier::kDevice, alignment_bytes_,
                         schedule_.shares_device ? round_up(slots_bytes, alignment_bytes_) : 0);
    const Ends ends = schedule_.shares_device
                          ? pack_together(windows, others)
                          : Ends{pack_windows(windows), pack_arena(others, alignment_bytes_)};
    schedule_.slot_count = std::max(schedule_.slot_count, ends.slots);
    schedule_.device_arena_bytes = std::max(schedule_.device_arena_bytes, ends.arena_bytes);
  }

  std::uint64_t pack_arena(std::int32_t rank, Tier tier, std::uint64_t alignment_bytes) {
    return pack_arena(place_persistent(rank, tier, alignment_bytes, 0), alignment_bytes);
  }

  // Transient buffers of one memory, above the persistent ones.
  struct Transients {
    std::vector<BufferId> buffers;
    std::vector<packing::Lifetime> lifetimes;
    std::uint64_t base = 0;  // end of the persistent ones: in bytes, for windows in slots
  };
  // The ends of the places given.
  struct Ends {
    std::uint32_t slots = 0;
    std::uint64_t arena_bytes = 0;
  };

  // Places persistent windows; returns the transient ones, with sizes in slots.
  Transients place_persistent_windows(std::int32_t rank) {
    Transients transients;
    for (Buffer& buffer : schedule_.buffers) {
      if (buffer.rank != rank || !buffer.window) continue;
      SLUICE_CHECK(buffer.tier == Tier::kDevice && schedule_.slot_bytes > 0);
      const std::uint64_t needed = ceil_div(buffer.bytes, schedule_.slot_bytes);
      buffer.slots.clear();
      if (buffer.persistent) {
        buffer.slots = slots_from(transients.base, needed);
        transients.base += needed;
      } else {
        transients.buffers.push_back(buffer.id);
        transients.lifetimes.push_back(lifetime_of(buffer, needed));
      }
    }
    return transients;
  }

  static std::vector<std::uint32_t> slots_from(std::uint64_t first, std::uint64_t count) {
    SLUICE_CHECK(first + count <= kNoId);
    std::vector<std::uint32_t> slots(count);
    std::iota(slots.begin(), slots.end(), static_cast<std::uint32_t>(first));
    return slots;
  }

  // Places the tier's persistent buffers, but no windows, from `base_bytes` on; returns the
  // transient ones.
  Transients place_persistent(std::int32_t rank, Tier tier, std::uint64_t alignment_bytes,
                              std::uint64_t base_bytes) {
    Transients transients;
    transients.base = base_bytes;
    for (Buffer& buffer : schedule_.buffers) {
      if (buffer.rank != rank || buffer.tier != tier || buffer.window) continue;
      if (buffer.persistent) {
        buffer.offset_bytes = transients.base;
        transients.base = round_up(transients.base + place_bytes(buffer), alignment_bytes);
      } else {
        transients.buffers.push_back(buffer.id);
        transients.lifetimes.push_back(lifetime_of(buffer, buffer.bytes));
      }
    }
    return transients;
  }

  std::uint32_t pack_windows(const Transients& windows) {
    packing::SlotAssignment assignment = packing::assign_slots(windows.lifetimes);
    for (std::size_t i = 0; i < windows.buffers.size(); ++i) {
      for (std::uint32_t& slot : assignment.slots[i]) {
        slot += static_cast<std::uint32_t>(windows.base);
      }
      schedule_.buffers[windows.buffers[i]].slots = std::move(assignment.slots[i]);
    }
    return static_cast<std::uint32_t>(windows.base) + assignment.slot_count;
  }

  std::uint64_t pack_arena(const Transients& transients, std::uint64_t alignment_bytes) {
    const std::vector<RingPiece> pieces = pieces_of(transients);
    const bool rings = std::any_of(pieces.begin(), pieces.end(),
                                   [](const RingPiece& piece) { return piece.ring >= 0; });
    if (!rings) {
      return place(transients, packing::pack_lifetimes(transients.lifetimes, alignment_bytes,
                                                       effort_, 0, 0, memo_));
    }
    return place(transients, pack_pieces(pieces, alignment_bytes, kRingSlack, 0));
  }

  std::size_t most_single_pieces() const {
    return effort_ == packing::PackingEffort::kCoarse ? kMostSinglePieces : kMostExactPieces;
  }

  // The transients with their rings. Where they are too many to be packed one by one, all
  // micro-batches' buffers of one content make a ring, too, while they live together.
  std::vector<RingPiece> pieces_of(const Transients& transients) const {
    std::vector<RingPiece> pieces(transients.buffers.size());
    const bool many = pieces.size() > most_single_pieces();
    std::map<std::tuple<BufferRole, std::int32_t, std::uint64_t>, std::int32_t> groups;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Buffer& buffer = schedule_.buffers[transients.buffers[i]];
      const auto kind = static_cast<std::uint32_t>(buffer.kind);
      pieces[i] = {transients.lifetimes[i], buffer.ring,
                   kind << 8 | static_cast<std::uint32_t>(buffer.dtype)};
      if (!many || buffer.ring >= 0) continue;
      const auto group = groups.try_emplace({buffer.role, buffer.unit, buffer.first_elem},
                                            kFirstGroup + static_cast<std::int32_t>(groups.size()));
      pieces[i].ring = group.first->second;
      pieces[i].apart = true;
    }
    return pieces;
  }

  std::uint64_t place(const Transients& transients, const packing::Packing& packing) {
    for (std::size_t i = 0; i < transients.buffers.size(); ++i) {
      schedule_.buffers[transients.buffers[i]].offset_bytes =
          transients.base + packing.offsets_bytes[i];
    }
    return transients.base + packing.capacity_bytes;
  }

  // Packs each ring as few boxes. They are rarely harder to stack than their pieces. Where they
  // are, smaller boxes and then the pieces themselves are tried, and the best packing is taken. The
  // search ends at the bound plus 1/slack of it.
  packing::Packing pack_pieces(const std::vector<RingPiece>& pieces, std::uint64_t alignment_bytes,
                               std::uint64_t slack, std::uint64_t base_bytes) const {
    packing::Packing best;
    best.capacity_bytes = std::numeric_limits<std::uint64_t>::max();
    const bool many = pieces.size() > kManyPieces;
    const bool may_be_single = pieces.size() <= most_single_pieces();
    std::uint64_t enough = 0;
    std::uint64_t enough_of_many = 0;
    for (const MergedUnit unit : {MergedUnit::kEpisode, MergedUnit::kPlace, MergedUnit::kPiece}) {
      if (unit == MergedUnit::kPiece && !may_be_single) break;
      if (many && best.capacity_bytes <= enough_of_many) break;
      RingBoxes rings = merge_rings(pieces, alignment_bytes, unit);
      const std::size_t most_places = may_be_single ? kMostPlaces : most_single_pieces();
      if (unit == MergedUnit::kPlace && rings.boxes.size() > most_places) continue;
      if (enough == 0) {
        const std::uint64_t bound = packing::peak_live(rings.boxes);  // the same for all units
        enough = bound + bound / slack;
        enough_of_many = bound + bound / kManyPiecesSlack;
      }
      const packing::Packing packing =
          packing::pack_lifetimes(rings.boxes, alignment_bytes, effort_, enough, base_bytes, memo_);
      if (packing.capacity_bytes < best.capacity_bytes) {
        best.capacity_bytes = packing.capacity_bytes;
        best.offsets_bytes.resize(pieces.size());
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          const RingBoxes::Place& at = rings.places[i];
          best.offsets_bytes[i] = packing.offsets_bytes[at.box] + at.offset_bytes;
        }
      }
      if (best.capacity_bytes <= enough || rings.boxes.size() == pieces.size()) break;
    }
    return best;
  }

  // Packs windows, each in a row of slots, together with the arena's buffers.
  Ends pack_together(const Transients& windows, const Transients& others) {
    const std::uint64_t base = others.base;  // after all that is persistent
    std::vector<RingPiece> pieces = pieces_of(others);
    for (packing::Lifetime lifetime : windows.lifetimes) {
      lifetime.bytes *= schedule_.slot_bytes;
      lifetime.alignment_bytes = schedule_.slot_bytes;
      pieces.push_back({lifetime});
    }
    // Windows can rarely be stacked without a gap, so a search for the bound itself would be
    // wasted.
    const packing::Packing packing = pack_pieces(pieces, alignment_bytes_, kSharedSlack, base);
    Ends ends{static_cast<std::uint32_t>(windows.base), base};
    const std::size_t other_count = others.buffers.size();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::uint64_t begin = base + packing.offsets_bytes[i];
      if (i < other_count) {
        schedule_.buffers[others.buffers[i]].offset_bytes = begin;
        ends.arena_bytes = std::max(ends.arena_bytes, begin + pieces[i].life.bytes);
        continue;
      }
      Buffer& window = schedule_.buffers[windows.buffers[i - other_count]];
      window.slots =
          slots_from(begin / schedule_.slot_bytes, windows.lifetimes[i - other_count].bytes);
      ends.slots = std::max(ends.slots, window.slots.back() + 1);
    }
    return ends;
  }

  // The last holders of each buffer's memory, in one list.
  struct Holders {
    struct Part {
      std::size_t begin = 0, count = 0;
    };
    std::vector<BufferId> list;
    std::vector<Part> parts;  // by buffer
    std::span<const BufferId> of(BufferId id) const {
      return std::span(list).subspan(parts[id].begin, parts[id].count);
    }
  };

  Holders holders_before() const {
    std::vector<BufferId> by_birth;
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent) by_birth.push_back(buffer.id);
    }
    std::sort(by_birth.begin(), by_birth.end(), [&](BufferId a, BufferId b) {
      return std::pair(lives_[a].birth, a) < std::pair(lives_[b].birth, b);
    });
    // Persistent memory is never reused.
    std::vector<std::array<Occupancy, kMemoryCount>> memories(
        static_cast<std::size_t>(schedule_.ranks));
    Holders before;
    before.parts.resize(schedule_.buffers.size());
    std::vector<BufferId> holders;
    for (const BufferId id : by_birth) {
      const Buffer& buffer = schedule_.buffers[id];
      auto& memory = memories[static_cast<std::size_t>(buffer.rank)];
      holders.clear();
      for (const MemoryRange& range : place_of(schedule_, buffer)) {
        memory[range.memory].take(range.begin_bytes, range.end_bytes, id, holders);
      }
      std::sort(holders.begin(), holders.end());
      holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
      before.parts[id] = {before.list.size(), holders.size()};
      before.list.insert(before.list.end(), holders.begin(), holders.end());
    }
    return before;
  }

  Schedule& schedule_;
  std::uint64_t alignment_bytes_;
  packing::PackingEffort effort_;
  packing::PackingMemo* memo_;
  std::vector<Life> lives_;
};

}  // namespace

std::array<std::uint64_t, kTierCount> packed_bytes(const Schedule& schedule,
                                                   std::uint64_t storage_bytes) {
  return {device_peak_bytes(schedule.slot_count * schedule.slot_bytes, schedule.device_arena_bytes,
                            schedule.shares_device),
          round_up(schedule.pinned_arena_bytes, kDirectAlignmentBytes),
          round_up(storage_bytes, kDirectAlignmentBytes)};
}

void pack(Schedule& schedule, std::uint64_t alignment_bytes, packing::PackingEffort effort,
          packing::PackingMemo* memo) {
  SLUICE_CHECK(alignment_bytes > 0);
  Packer packer(schedule, alignment_bytes, effort, memo);
  packer.place_buffers();
  packer.order_reuse();
}

void place_buffers(Schedule& schedule, std::uint64_t alignment_bytes, packing::PackingEffort effort,
                   packing::PackingMemo* memo) {
  SLUICE_CHECK(alignment_bytes > 0);
  Packer(schedule, alignment_bytes, effort, memo).place_buffers();
}

std::uint64_t least_pinned_bytes(const Schedule& schedule) {
  const std::vector<Life> lives = lives_of(schedule);
  std::uint64_t most = 0;
  for (std::int32_t rank = 0; rank < schedule.ranks; ++rank) {
    std::uint64_t resting = 0;
    std::vector<packing::Lifetime> transients;
    for (const Buffer& buffer : schedule.buffers) {
      if (buffer.rank != rank || buffer.tier != Tier::kPinned) continue;
      if (buffer.persistent) {
        resting += place_bytes(buffer);
      } else {
        const Life& life = lives[buffer.id];
        transients.push_back({life.birth, std::uint64_t{life.release} + 1, buffer.bytes});
      }
    }
    most = std::max(most, resting + packing::peak_live(transients));
  }
  return most;
}

void order_reuse(Schedule& schedule) {
  Packer(schedule, kTensorAlignmentBytes, packing::PackingEffort::kQuick, nullptr).order_reuse();
}

}  // namespace sluice::schedule
