// A schedule made ready to run: every use resolved to an address, every lane to its list.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::runtime {

// A resolved Use. On storage: data null; a part of a range of the tagged space, by slot.
struct Place {
  std::byte* data = nullptr;
  RunMemory::SlotRanges storage_ranges{};
  std::uint64_t range_offset = 0;    // bytes from the range's begin
  std::uint64_t storage_offset = 0;  // and from that of the space, slot 0
  std::uint64_t bytes = 0;
  const schedule::Buffer* buffer = nullptr;
};

class Program {
 public:
  // The schedule must outlive the program. Maps windows: set-up only. flipped: homes that have a
  // shadow and their shadows change places, so that the program finds what the other one made.
  Program(const schedule::Schedule& schedule, RunMemory& memory, bool flipped = false);

  const schedule::Schedule& schedule() const { return schedule_; }
  const std::vector<schedule::InstructionId>& lane(schedule::Lane lane) const {
    return lanes_[static_cast<std::size_t>(lane)];
  }
  const std::vector<Place>& reads(schedule::InstructionId id) const { return reads_[id]; }
  const std::vector<Place>& writes(schedule::InstructionId id) const { return writes_[id]; }
  // Something waits for it by name: another lane, or a later write to the same bytes.
  bool awaited(schedule::InstructionId id) const { return awaited_[id]; }
  // Of the storage_write lane: earlier writes of the same bytes, which must have ended before it
  // starts (such lanes keep several transfers in flight).
  const std::vector<schedule::InstructionId>& storage_conflicts(schedule::InstructionId id) const {
    return storage_conflicts_[id];
  }
  // When the end of a storage transfer is waited for: the place in the schedule, counted from 1, of
  // the first instruction of other lanes that cannot start before it, by way of other transfers
  // too; behind the last where none waits.
  std::uint64_t needed_by(schedule::InstructionId id) const { return needed_by_[id]; }
  // Transfers from and to storage whose memory a host update takes first after, or left right
  // before them: it verifies and tags their blocks while they are in its cache (TagsBy::kCaller).
  struct UpdateTransfers {
    std::vector<schedule::InstructionId> reads, writes;
  };
  const UpdateTransfers& update_transfers(schedule::InstructionId update) const {
    return update_transfers_[update];
  }
  bool tagged_in_update(schedule::InstructionId transfer) const {
    return tagged_in_update_[transfer];
  }
  // Of a transfer from or to storage that holds two versions: it is of the state that the pass
  // makes, not of what it found.
  bool of_made_state(schedule::InstructionId id) const { return of_made_state_[id]; }

 private:
  std::vector<Place> resolve(const std::vector<schedule::Use>& uses, RunMemory& memory);
  void find_storage_conflicts();
  void find_made_state();
  void find_update_transfers();
  bool is_host_update(schedule::InstructionId id) const;  // kNoId: false
  // What find_update_transfers() notes of an update and of a write. before, last: who used each
  // buffer last before it, and last of all; kNoId: nobody.
  using UsersByBuffer = std::vector<schedule::InstructionId>;
  void note_reads_for(schedule::InstructionId update, const UsersByBuffer& before,
                      const UsersByBuffer& last);
  void note_write_behind_update(schedule::InstructionId write, const UsersByBuffer& before);
  void find_needed_by();

  const schedule::Schedule& schedule_;
  std::array<std::vector<schedule::InstructionId>, schedule::kLaneCount> lanes_;
  std::vector<schedule::BufferId> lies_in_;                           // by buffer: whose place
  std::vector<std::byte*> addresses_;                                 // by buffer
  std::vector<std::optional<RunMemory::SlotRanges>> storage_ranges_;  // by buffer
  std::vector<std::vector<Place>> reads_;
  std::vector<std::vector<Place>> writes_;
  std::vector<bool> awaited_;
  std::vector<std::vector<schedule::InstructionId>> storage_conflicts_;
  std::vector<bool> of_made_state_;
  std::vector<UpdateTransfers> update_transfers_;
  std::vector<bool> tagged_in_update_;
  std::vector<std::uint64_t> needed_by_;
};

// The buffer whose place each buffer of a schedule has where shadows and their homes have changed
// roles.
std::vector<schedule::BufferId> flipped_shadows(const schedule::Schedule& schedule);

// The place among `places` whose buffer has this role or kind; null where there is none.
const Place* find_place(const std::vector<Place>& places, schedule::BufferRole role);
const Place* find_state(const std::vector<Place>& places, StateKind kind, std::int32_t unit);

}  // namespace sluice::runtime
