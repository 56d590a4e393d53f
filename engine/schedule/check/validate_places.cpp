// Part of validate: no two live buffers overlap in memory, and all memory is inside the budgets.
//
// One walk in list order. A buffer takes its memory at its first write. The Release of every buffer
// that held any of these bytes just before must then be done, whatever the timing. Holders before
// those need no check of their own, since the previous holders waited for them.
#include <algorithm>
#include <map>
#include <vector>

#include "base/units.hpp"
#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

struct Holder {
  std::uint64_t end;
  BufferId buffer;
};
using Memory = std::map<std::uint64_t, Holder>;  // begin of each held range

class Places {
 public:
  Places(const Schedule& schedule, const HappensBefore& order, Problems& problems)
      : schedule_(schedule),
        order_(order),
        problems_(problems),
        memories_(static_cast<std::size_t>(schedule.ranks)),
        release_(schedule.buffers.size(), kNoId),
        previous_(schedule.buffers.size()) {}

  // Walks in list order: a buffer takes its memory at its first write.
  void run() {
    std::vector<bool> placed(schedule_.buffers.size(), false);
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent) continue;
      take(buffer);
      placed[buffer.id] = true;
    }
    for (const Instruction& instruction : schedule_.instructions) {
      if (instruction.op == Op::kRelease) {
        for (const Use& use : instruction.reads) release_[use.buffer] = instruction.id;
        for (const Use& use : instruction.writes) release_[use.buffer] = instruction.id;
        continue;
      }
      for (const Use& use : instruction.writes) {
        if (!placed[use.buffer]) {
          take(schedule_.buffers[use.buffer]);
          placed[use.buffer] = true;
        }
        check_order(instruction, schedule_.buffers[use.buffer]);
      }
    }
  }

 private:
  // A window takes several ranges of memory, one for each slot.
  void take(const Buffer& buffer) {
    auto& memory = memories_[static_cast<std::size_t>(buffer.rank)];
    for (const MemoryRange& range : place_of(schedule_, buffer)) {
      take_range(memory[range.memory], range.begin_bytes, range.end_bytes, buffer);
    }
  }

  // Gives the range to the buffer. Holders that it meets are noted; their parts outside the range
  // stay with them.
  void take_range(Memory& memory, std::uint64_t begin, std::uint64_t end, const Buffer& buffer) {
    auto at = memory.lower_bound(begin);
    if (at != memory.end() && at->first == begin && at->second.end == end) {
      note_meeting(buffer, schedule_.buffers[at->second.buffer]);
      at->second.buffer = buffer.id;
      return;
    }
    if (at != memory.begin() && std::prev(at)->second.end > begin) --at;
    while (at != memory.end() && at->first < end) {
      const std::uint64_t held_begin = at->first;
      const Holder held = at->second;
      note_meeting(buffer, schedule_.buffers[held.buffer]);
      at = memory.erase(at);
      if (held_begin < begin) memory[held_begin] = Holder{begin, held.buffer};
      if (held.end > end) memory[end] = held;
    }
    memory[begin] = Holder{end, buffer.id};
  }

  // Checks that `buffer` may take memory that `earlier` held last.
  void note_meeting(const Buffer& buffer, const Buffer& earlier) {
    if (earlier.persistent || release_[earlier.id] == kNoId) {
      problems_.add(describe(buffer) + " and " + describe(earlier) +
                    " lie in the same memory at the same time");
      return;
    }
    auto& list = previous_[buffer.id];
    if (std::find(list.begin(), list.end(), earlier.id) == list.end()) list.push_back(earlier.id);
  }

  // Holders before the previous ones are ordered through these.
  void check_order(const Instruction& instruction, const Buffer& buffer) {
    for (const BufferId earlier : previous_[buffer.id]) {
      if (order_.done_before(release_[earlier], instruction.id)) continue;
      problems_.add(describe(instruction) + " may write " + describe(buffer) + " before " +
                    describe(schedule_.buffers[earlier]) + " has given up its memory");
    }
  }

  const Schedule& schedule_;
  const HappensBefore& order_;
  Problems& problems_;
  std::vector<std::array<Memory, kMemoryCount>> memories_;  // by rank
  std::vector<InstructionId> release_;
  std::vector<std::vector<BufferId>> previous_;  // the buffers that held its memory just before
};

// A window has enough distinct slots that exist. Any other buffer lies inside its tier's arena.
void check_inside(const Schedule& schedule, const Buffer& buffer, Problems& problems) {
  if (buffer.window) {
    std::vector<std::uint32_t> slots = buffer.slots;
    std::sort(slots.begin(), slots.end());
    const bool distinct = std::adjacent_find(slots.begin(), slots.end()) == slots.end();
    if (buffer.tier != Tier::kDevice || schedule.slot_bytes == 0 || !distinct ||
        slots.size() < ceil_div(buffer.bytes, schedule.slot_bytes) ||
        (!slots.empty() && slots.back() >= schedule.slot_count)) {
      problems.add(describe(buffer) + " does not fit its slots");
    }
    return;
  }
  const std::array<std::uint64_t, kTierCount> ends{
      schedule.device_arena_bytes, schedule.pinned_arena_bytes,
      schedule.peak_bytes[static_cast<std::size_t>(Tier::kStorage)]};
  const std::uint64_t end = ends[static_cast<std::size_t>(buffer.tier)];
  if (buffer.offset_bytes > end || place_bytes(buffer) > end - buffer.offset_bytes) {
    problems.add(describe(buffer) + " lies outside its arena");
  }
}

// The device bytes that the places of the neediest rank take. Slots and arena of a world are the
// largest of any rank, and not always of the same one.
std::uint64_t device_bytes_needed(const Schedule& schedule) {
  if (schedule.ranks == 1) {
    return device_peak_bytes(schedule.slot_count * schedule.slot_bytes, schedule.device_arena_bytes,
                             schedule.shares_device);
  }
  struct Ends {
    std::uint64_t slots = 0;
    std::uint64_t arena_bytes = 0;
  };
  std::vector<Ends> ends(static_cast<std::size_t>(schedule.ranks));
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.tier != Tier::kDevice) continue;
    Ends& end = ends[static_cast<std::size_t>(buffer.rank)];
    for (const std::uint32_t slot : buffer.slots) {
      end.slots = std::max<std::uint64_t>(end.slots, slot + 1ull);
    }
    if (buffer.window) continue;
    end.arena_bytes = std::max(end.arena_bytes, buffer.offset_bytes + place_bytes(buffer));
  }
  std::uint64_t most = 0;
  for (const Ends& end : ends) {
    most = std::max(most, device_peak_bytes(end.slots * schedule.slot_bytes, end.arena_bytes,
                                            schedule.shares_device));
  }
  return most;
}

}  // namespace

void check_places(const Schedule& schedule, const HappensBefore& order,
                  const std::array<std::uint64_t, kTierCount>& budgets_bytes, Problems& problems) {
  for (const Buffer& buffer : schedule.buffers) check_inside(schedule, buffer, problems);
  const std::array<std::uint64_t, kTierCount> needed{device_bytes_needed(schedule),
                                                     schedule.pinned_arena_bytes, 0};
  for (const Tier tier : kTiers) {
    const auto at = static_cast<std::size_t>(tier);
    const std::string name(tier_name(tier));
    if (schedule.peak_bytes[at] < needed[at]) {
      problems.add("the peak of " + name + " is declared smaller than its arenas");
    }
    if (schedule.peak_bytes[at] > budgets_bytes[at]) {
      problems.add("the peak of " + name + " is " + std::to_string(schedule.peak_bytes[at]) +
                   " bytes; the budget is " + std::to_string(budgets_bytes[at]));
    }
  }
  if (!problems.none()) return;
  Places(schedule, order, problems).run();
}

}  // namespace sluice::schedule::validation
