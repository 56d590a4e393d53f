// The placement pass: gives every buffer its place in memory, and orders the reuse of memory.
#pragma once

#include "allocator/packing/arena_packing.hpp"
#include "base/units.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// Runs after link. Precondition: `schedule.slot_bytes` is set if there are windows.
//
// Windows get chunk slots; other device buffers get offsets in the device arena, in multiples of
// `alignment_bytes`. With `schedule.shares_device` both are packed into one memory. Pinned buffers
// lie in the pinned arena, storage buffers in the storage space. A transient buffer lives from the
// first instruction that writes it through the Release that names it (InternalError if either is
// missing). Staging pieces of one ring lie together (ring_boxes.hpp). Persistent buffers come
// first, one after another. Their places depend only on the list of persistent buffers, so
// schedules that share that list share the places. Then pack adds deps: an instruction that writes
// a buffer comes after the Release of every earlier buffer in its memory. Fills slot_count,
// device_arena_bytes, pinned_arena_bytes and peak_bytes; with several ranks each is the largest of
// all ranks. `memo` saves searches, and changes nothing.
void pack(Schedule& schedule, std::uint64_t alignment_bytes = kTensorAlignmentBytes,
          packing::PackingEffort effort = packing::PackingEffort::kQuick,
          packing::PackingMemo* memo = nullptr);

// The two halves of pack. The places alone tell the memory that a schedule needs. They need no link
// before.
void place_buffers(Schedule& schedule, std::uint64_t alignment_bytes = kTensorAlignmentBytes,
                   packing::PackingEffort effort = packing::PackingEffort::kQuick,
                   packing::PackingMemo* memo = nullptr);
// The most bytes of pinned buffers that live at once: no places take fewer. Needs no places.
std::uint64_t least_pinned_bytes(const Schedule& schedule);
// Adds the deps that order the reuse of memory. Precondition: all buffers have places, and link
// ran.
void order_reuse(Schedule& schedule);

// Bytes per tier that the places need: slots and whole arena pages of the device, 4 KiB pages of
// pinned memory, storage.
std::array<std::uint64_t, kTierCount> packed_bytes(const Schedule& schedule,
                                                   std::uint64_t storage_bytes);

}  // namespace sluice::schedule
