// The placement pass: gives every buffer its place in memory, and orders the reuse of memory.
#pragma once

#include "base/units.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// Runs after link (ids set). `schedule.slot_bytes` must be set where there are windows.
//
// Windows get chunk slots, other device buffers offsets in the device arena (multiples of
// `alignment_bytes`); where `schedule.shares_device` both are packed into one memory. Pinned
// buffers in the pinned arena, storage buffers in the storage space. A transient buffer lives from
// the first instruction that writes it through the Release that names it (InternalError where
// either is missing). Persistent buffers come first, one after another: their places are a function
// of the list of persistent buffers alone, so schedules that share that list share the places. Then
// adds deps: whatever writes a buffer comes after the Release of every buffer that held its memory
// before. Fills slot_count, device_arena_bytes, pinned_arena_bytes and peak_bytes; with several
// ranks each is the largest of all ranks.
void pack(Schedule& schedule, std::uint64_t alignment_bytes = kTensorAlignmentBytes);

// The most bytes per tier that the places so far need: slots and whole arena pages of the device,
// 4 KiB pages of pinned memory, storage.
std::array<std::uint64_t, kTierCount> packed_bytes(const Schedule& schedule,
                                                   std::uint64_t storage_bytes);

}  // namespace sluice::schedule
