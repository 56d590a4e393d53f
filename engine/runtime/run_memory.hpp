// All the memory of a run, obtained once before the first step and held to its end.
//
// Device: chunk slots, with a window mapped for every way in which the schedules use them, and one
// planned arena. The arena lies over the slots if the schedules share the device. Pinned: one arena
// for homes and staging. Storage: one striped space. Sizes come from the packed schedules; nothing
// is allocated afterwards.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "allocator/chunk_pool.hpp"
#include "allocator/pinned_arena.hpp"
#include "allocator/planned_arena.hpp"
#include "engine/schedule/schedule.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::runtime {

// Memory that a run holds apart from its schedules' own, all the time.
struct FixedNeed {
  std::uint64_t log_bytes = 0;  // storage: of a durable run's commits
  std::uint64_t staging_bytes =
      0;  // pinned: for messages of a GPU's memory (collective_runner.hpp)
};

// The largest need of several schedules that share one run's memory.
struct MemoryNeed {
  std::uint32_t slot_count = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t device_arena_bytes = 0;
  bool shares_device = false;  // Schedule::shares_device, of all
  std::uint64_t pinned_bytes = 0;
  std::uint64_t storage_bytes = 0;
  FixedNeed fixed;

  // As the ledger is charged: whole pages.
  std::array<std::uint64_t, kTierCount> peak_bytes() const;
  // Becomes the larger of both, field by field. Both share the device, or none does.
  void include(const MemoryNeed& other);
};

// All share the device, or none does (InternalError). Also covers the window through which state is
// filled and saved between steps: `io_buffer_bytes` of pinned memory, shared with the steps'
// staging.
MemoryNeed memory_need(std::span<const schedule::Schedule* const> schedules,
                       std::uint64_t io_buffer_bytes);

// The need of the schedule's persistent buffers alone, which are in use between steps too.
MemoryNeed resting_need(const schedule::Schedule& schedule);

class RunMemory {
 public:
  // engine may be null when need.storage_bytes is 0. kept: the run's files stay (durable). shares:
  // of the storage paths (StripedSpace); empty: even ones.
  RunMemory(device::Device& device, allocator::Ledger& ledger, offload::StorageEngine* engine,
            const std::vector<std::string>& storage_paths, const MemoryNeed& need, const RunId& run,
            bool kept = false, const std::vector<std::uint32_t>& shares = {});

  // Address of a device or pinned buffer; windows are mapped on first request (set-up only).
  std::byte* address(const schedule::Buffer& buffer);
  offload::TaggedSpace& storage() { return storage_; }
  // Returns the tagged range of each copy of a storage buffer. Both are equal if the buffer has one
  // version. Adds new ranges during set-up only.
  using CopyRanges = std::array<offload::TaggedSpace::RangeId, 2>;
  CopyRanges storage_ranges(const schedule::Buffer& buffer);
  // Pinned memory for set-up and checkpoints, only between steps. Shares bytes with staging, so it
  // starts after the persistent pinned buffers. Precondition: the arena has so many bytes there.
  std::span<std::byte> io_buffer(std::uint64_t persistent_pinned_bytes, std::uint64_t bytes);
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }  // of the need
  // Empty if the need has none.
  std::span<std::byte> staging() { return {staging_.data(), staging_.bytes()}; }

  // The ends of all places that were handed out since the last call, in each memory: addresses,
  // ranges of storage, and parts of the I/O buffer.
  MemoryNeed take_handed_out();

 private:
  allocator::PagePool pages_;
  allocator::ChunkPool slots_;
  allocator::PlannedArena arena_;
  allocator::PinnedArena pinned_;
  allocator::PinnedArena staging_;
  offload::StripedSpace space_;
  offload::TaggedSpace storage_;
  std::map<std::vector<std::uint32_t>, std::byte*> windows_;
  std::uint64_t pinned_bytes_;
  MemoryNeed nothing_;  // the run's need without its bytes
  MemoryNeed handed_out_;
};

// Bytes of the pinned arena that persistent buffers take (they come first).
std::uint64_t persistent_pinned_bytes(const schedule::Schedule& schedule);

}  // namespace sluice::runtime
