#include "engine/schedule/pack.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "allocator/packing/arena_packing.hpp"
#include "base/error.hpp"
#include "engine/schedule/lane_clocks.hpp"

namespace sluice {
namespace {

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

// Who held each byte (or slot) of one memory last. Half-open ranges, no overlaps.
class Occupancy {
 public:
  // Appends the last holders of [begin, end) to `before`, then gives the range to `holder`.
  void take(std::uint64_t begin, std::uint64_t end, BufferId holder,
            std::vector<BufferId>& before) {
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) --it;
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
  Packer(Schedule& schedule, std::uint64_t alignment_bytes)
      : schedule_(schedule), alignment_bytes_(alignment_bytes), lives_(lives_of(schedule)) {}

  void run() {
    schedule_.slot_count = 0;
    schedule_.device_arena_bytes = 0;
    schedule_.pinned_arena_bytes = 0;
    std::uint64_t storage_bytes = 0;
    for (std::int32_t rank = 0; rank < schedule_.ranks; ++rank) {
      const std::uint32_t slots = pack_windows(rank);
      schedule_.slot_count = std::max(schedule_.slot_count, slots);
      const std::uint64_t device = pack_arena(rank, Tier::kDevice, alignment_bytes_);
      schedule_.device_arena_bytes = std::max(schedule_.device_arena_bytes, device);
      const std::uint64_t pinned = pack_arena(rank, Tier::kPinned, kDirectAlignmentBytes);
      schedule_.pinned_arena_bytes = std::max(schedule_.pinned_arena_bytes, pinned);
      storage_bytes =
          std::max(storage_bytes, pack_arena(rank, Tier::kStorage, kDirectAlignmentBytes));
    }
    schedule_.peak_bytes = packed_bytes(schedule_, storage_bytes);
    order_reuse();
  }

 private:
  Lifetime lifetime_of(const Buffer& buffer, std::uint64_t size) const {
    const Life& life = lives_[buffer.id];
    return Lifetime{life.birth, std::uint64_t{life.release} + 1, size};
  }

  std::uint32_t pack_windows(std::int32_t rank) {
    std::uint32_t first_free = 0;
    std::vector<BufferId> transient;
    std::vector<Lifetime> lifetimes;
    for (Buffer& buffer : schedule_.buffers) {
      if (buffer.rank != rank || !buffer.window) continue;
      SLUICE_CHECK(buffer.tier == Tier::kDevice && schedule_.slot_bytes > 0);
      const std::uint64_t needed = ceil_div(buffer.bytes, schedule_.slot_bytes);
      buffer.slots.clear();
      if (buffer.persistent) {
        for (std::uint64_t k = 0; k < needed; ++k) buffer.slots.push_back(first_free++);
      } else {
        transient.push_back(buffer.id);
        lifetimes.push_back(lifetime_of(buffer, needed));
      }
    }
    if (transient.empty()) return first_free;
    SlotAssignment assignment = assign_slots(lifetimes);
    for (std::size_t i = 0; i < transient.size(); ++i) {
      for (std::uint32_t& slot : assignment.slots[i]) slot += first_free;
      schedule_.buffers[transient[i]].slots = std::move(assignment.slots[i]);
    }
    return first_free + assignment.slot_count;
  }

  // Places the tier's buffers that are no windows; returns the bytes they span.
  std::uint64_t pack_arena(std::int32_t rank, Tier tier, std::uint64_t alignment_bytes) {
    std::uint64_t base_bytes = 0;
    std::vector<BufferId> transient;
    std::vector<Lifetime> lifetimes;
    for (Buffer& buffer : schedule_.buffers) {
      if (buffer.rank != rank || buffer.tier != tier || buffer.window) continue;
      if (buffer.persistent) {
        buffer.offset_bytes = base_bytes;
        base_bytes = round_up(base_bytes + place_bytes(buffer), alignment_bytes);
      } else {
        transient.push_back(buffer.id);
        lifetimes.push_back(lifetime_of(buffer, buffer.bytes));
      }
    }
    if (transient.empty()) return base_bytes;
    const Packing packing = pack_lifetimes(lifetimes, alignment_bytes);
    for (std::size_t i = 0; i < transient.size(); ++i) {
      schedule_.buffers[transient[i]].offset_bytes = base_bytes + packing.offsets_bytes[i];
    }
    return base_bytes + packing.capacity_bytes;
  }

  // Memory passes from buffer to buffer; each waits for the Release of those just before it, which
  // wait for those before them.
  void order_reuse() {
    const std::vector<std::vector<BufferId>> before = holders_before();
    LaneClocks clocks(schedule_);
    std::vector<InstructionId> candidates;
    for (Instruction& instruction : schedule_.instructions) {
      if (instruction.op != Op::kRelease) {
        for (const Use& use : instruction.writes) {
          for (const BufferId holder : before[use.buffer]) {
            candidates.push_back(lives_[holder].release);
          }
        }
      }
      add_deps(clocks, instruction, candidates);
    }
  }

  std::vector<std::vector<BufferId>> holders_before() const {
    std::vector<BufferId> by_birth;
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent) by_birth.push_back(buffer.id);
    }
    std::sort(by_birth.begin(), by_birth.end(), [&](BufferId a, BufferId b) {
      return std::pair(lives_[a].birth, a) < std::pair(lives_[b].birth, b);
    });
    // Tiers, and one more memory for the slots; persistent memory is never reused.
    std::vector<std::array<Occupancy, kTierCount + 1>> memories(
        static_cast<std::size_t>(schedule_.ranks));
    std::vector<std::vector<BufferId>> before(schedule_.buffers.size());
    for (const BufferId id : by_birth) {
      const Buffer& buffer = schedule_.buffers[id];
      auto& memory = memories[static_cast<std::size_t>(buffer.rank)];
      std::vector<BufferId>& holders = before[id];
      if (buffer.window) {
        for (const std::uint32_t slot : buffer.slots) {
          memory[kTierCount].take(slot, slot + 1, id, holders);
        }
      } else {
        memory[static_cast<std::size_t>(buffer.tier)].take(
            buffer.offset_bytes, buffer.offset_bytes + buffer.bytes, id, holders);
      }
      std::sort(holders.begin(), holders.end());
      holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    }
    return before;
  }

  Schedule& schedule_;
  std::uint64_t alignment_bytes_;
  std::vector<Life> lives_;
};

}  // namespace

std::array<std::uint64_t, kTierCount> packed_bytes(const Schedule& schedule,
                                                   std::uint64_t storage_bytes) {
  return {
      schedule.slot_count * schedule.slot_bytes + round_up(schedule.device_arena_bytes, kPageBytes),
      round_up(schedule.pinned_arena_bytes, kDirectAlignmentBytes),
      round_up(storage_bytes, kDirectAlignmentBytes)};
}

void pack(Schedule& schedule, std::uint64_t alignment_bytes) {
  SLUICE_CHECK(alignment_bytes > 0);
  Packer(schedule, alignment_bytes).run();
}

}  // namespace sluice
