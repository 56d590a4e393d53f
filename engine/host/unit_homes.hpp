// The bytes of a pager's units where they rest, and their way into pinned memory and back.
//
// A part that rests in pinned memory is used there. One that rests on storage has a place in a
// staging buffer: unit u in buffer u modulo two, so its address never changes. stage() brings a
// unit's parts; unstage() begins to write them and returns. Transfers of a buffer form a chain:
//
//   idle ── stage ──> reading ──> holds unit u ── unstage ──> writing ──> (the next read) ──> …
//
// A staging buffer keeps its contents until another unit needs it, so repeated reads of a unit cost
// one transfer. A write that fails leaves a unit without true bytes: every later call that touches
// storage throws.
//
// Threads: one at a time, but page_in() may run on another thread while nothing is staged.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/pinned_arena.hpp"
#include "base/mutex.hpp"
#include "engine/host/host_engine.hpp"
#include "engine/host/paged_units.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::host {

class UnitHomes {
 public:
  // Takes all memory; fill() then gives it contents. `units` and `plan` must outlive this object.
  // Throws OutOfMemory, InputError, IoError, DeviceError.
  UnitHomes(HostEngine& engine, const std::vector<PagedUnit>& units, const PagerPlan& plan);
  ~UnitHomes();
  UnitHomes(const UnitHomes&) = delete;
  UnitHomes& operator=(const UnitHomes&) = delete;

  // The initial bytes of every tensor; zeros where it has none.
  void fill(const std::vector<PagedTensor>& tensors);

  // Null if the part rests on storage.
  std::byte* home(std::uint32_t unit, PagedPart part) const;
  // Its home, or its place in the staging buffer.
  std::byte* staged(std::uint32_t unit, PagedPart part) const;

  // Waits until the unit's parts are staged, and begins to read those of `next`. Throws IoError,
  // IntegrityError, TimeoutError, and SessionPoisoned after a failed write.
  void stage(std::uint32_t unit, std::optional<std::uint32_t> next);
  // The staged bytes are the unit's from now on. Returns before they are written.
  void unstage(std::uint32_t unit);
  // Waits for all transfers. Throws the error of a failed write.
  void settle();

  // Bytes [first, first + bytes) of a part, for a window. Those of storage are read into piece
  // number `piece`. Precondition: `first` and kPageInPieceBytes at most cut no block.
  const std::byte* page_in(std::uint32_t unit, PagedPart part, std::uint64_t first,
                           std::uint64_t bytes, std::uint32_t piece);

  bool rests_on_storage(std::uint32_t unit, PagedPart part) const;
  offload::StorageCounters storage_counters() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct StagingBuffer {
    std::uint32_t unit = kNone;   // whose bytes it holds, or is about to
    std::uint32_t next = kNone;   // to be read once the write is done
    std::uint32_t in_flight = 0;  // transfers
    bool is_writing = false;
    std::exception_ptr error;  // of a read
  };
  StagingBuffer& buffer_of(std::uint32_t unit) SLUICE_REQUIRES(mutex_) {
    return buffers_[unit % kStagingBuffers];
  }
  bool is_stored(std::uint32_t unit) const;
  void wait_for(MutexLock& lock, const StagingBuffer& buffer) SLUICE_REQUIRES(mutex_);
  void check_writes() SLUICE_REQUIRES(mutex_);
  void claim(StagingBuffer& buffer, std::uint32_t unit, bool writes) SLUICE_REQUIRES(mutex_);
  void submit(std::uint32_t unit, bool writes) SLUICE_EXCLUDES(mutex_);
  void end_transfer(std::uint32_t unit, const std::exception_ptr& error) SLUICE_EXCLUDES(mutex_);
  std::uint64_t stored_bytes(std::uint32_t unit, PagedPart part) const;

  const std::vector<PagedUnit>& units_;
  const PagerPlan& plan_;
  const double deadline_seconds_;
  allocator::PinnedArena pinned_;
  std::unique_ptr<offload::StorageEngine> storage_;  // null: nothing rests there
  std::unique_ptr<offload::StripedSpace> space_;
  std::unique_ptr<offload::TaggedSpace> tagged_;
  std::vector<std::array<offload::TaggedSpace::RangeId, kPagedPartCount>> ranges_;
  Mutex mutex_;
  CondVar changed_;
  std::array<StagingBuffer, kStagingBuffers> buffers_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr write_error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::host
