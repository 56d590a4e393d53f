// A schedule made ready to run: every use resolved to an address, every lane to its list.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::runtime {

// Lanes that are streams of the device; the others are threads of the host.
constexpr bool is_device_lane(schedule::Lane lane) {
  return lane == schedule::Lane::kCompute || lane == schedule::Lane::kH2D ||
         lane == schedule::Lane::kD2H || lane == schedule::Lane::kComm ||
         lane == schedule::Lane::kInner || lane == schedule::Lane::kSend ||
         lane == schedule::Lane::kReceive;
}

// A resolved Use. On storage: data null; a part of a range of the tagged space, by copy.
struct Place {
  std::byte* data = nullptr;
  RunMemory::CopyRanges storage_ranges{};
  std::uint64_t range_offset = 0;    // bytes from the range's begin
  std::uint64_t storage_offset = 0;  // and from that of the space, copy 0
  std::uint64_t bytes = 0;
  const schedule::Buffer* buffer = nullptr;
};

class Program {
 public:
  // The schedule must outlive the program. Maps windows: set-up only. flipped: homes and
  // their shadows change places, so that the program reads the state that the other one made.
  Program(const schedule::Schedule& schedule, RunMemory& memory, bool flipped = false);

  const schedule::Schedule& schedule() const { return schedule_; }
  const std::vector<schedule::InstructionId>& lane(schedule::Lane lane) const {
    return lanes_[static_cast<std::size_t>(lane)];
  }
  const std::vector<Place>& reads(schedule::InstructionId id) const { return reads_[id]; }
  const std::vector<Place>& writes(schedule::InstructionId id) const { return writes_[id]; }
  // Something waits for it by name: another lane, or a later write to the same bytes.
  bool awaited(schedule::InstructionId id) const { return awaited_[id]; }
  // For the storage_write lane, which keeps several transfers in flight: the earlier writes of the
  // same bytes, which must have ended before this one starts.
  const std::vector<schedule::InstructionId>& storage_conflicts(schedule::InstructionId id) const {
    return storage_conflicts_[id];
  }
  // Returns when the end of a storage transfer is needed: the position in the schedule, counted
  // from 1, of the first instruction on another lane that cannot start before it, also by way of
  // other transfers. Returns the position after the last instruction if none waits.
  std::uint64_t needed_by(schedule::InstructionId id) const { return needed_by_[id]; }
  // Storage reads directly before a host update of the same memory, and writes directly after it.
  // The update verifies and tags their blocks while these are in its cache (TagsBy::kCaller).
  struct UpdateTransfers {
    std::vector<schedule::InstructionId> reads, writes;
  };
  const UpdateTransfers& update_transfers(schedule::InstructionId update) const {
    return update_transfers_[update];
  }
  bool tagged_in_update(schedule::InstructionId transfer) const {
    return tagged_in_update_[transfer];
  }
  // Whether a transfer of storage with two versions moves the state that the pass makes, not the
  // state before it.
  bool of_made_state(schedule::InstructionId id) const { return belongs_[id].to_made_state; }
  // Whether an update belongs to the step before: it reads the clip factor that the pass finds.
  bool of_pending_update(schedule::InstructionId id) const {
    return belongs_[id].to_pending_update;
  }

 private:
  std::vector<Place> resolve(const schedule::Uses& uses, RunMemory& memory);
  void find_storage_conflicts();
  void find_made_state();
  void find_pending_updates();
  void find_update_transfers();
  bool is_host_update(schedule::InstructionId id) const;  // kNoId: false
  // Notes of find_update_transfers() about an update and a write. before, last: the last user of
  // each buffer before it, and the last user of all; kNoId: none.
  using UsersByBuffer = std::vector<schedule::InstructionId>;
  void note_reads_for(schedule::InstructionId update, const UsersByBuffer& before,
                      const UsersByBuffer& last);
  void note_write_after_update(schedule::InstructionId write, const UsersByBuffer& before);
  void find_needed_by();

  const schedule::Schedule& schedule_;
  std::array<std::vector<schedule::InstructionId>, schedule::kLaneCount> lanes_;
  std::vector<schedule::BufferId> lies_in_;  // by buffer: the buffer with its place
  std::vector<std::byte*> addresses_;        // by buffer
  std::vector<std::optional<RunMemory::CopyRanges>> storage_ranges_;  // by buffer
  std::vector<std::vector<Place>> reads_;
  std::vector<std::vector<Place>> writes_;
  std::vector<bool> awaited_;
  std::vector<std::vector<schedule::InstructionId>> storage_conflicts_;
  struct Belongs {
    bool to_made_state = false;
    bool to_pending_update = false;
  };
  std::vector<Belongs> belongs_;
  std::vector<UpdateTransfers> update_transfers_;
  std::vector<bool> tagged_in_update_;
  std::vector<std::uint64_t> needed_by_;
};

// For each buffer of a schedule, the buffer with its place after homes and shadows have changed
// roles.
std::vector<schedule::BufferId> flipped_shadows(const schedule::Schedule& schedule);

// The place among `places` with a buffer of this role or kind; null if there is none.
const Place* find_place(const std::vector<Place>& places, schedule::BufferRole role);
const Place* find_state(const std::vector<Place>& places, StateKind kind, std::int32_t unit);

}  // namespace sluice::runtime
