#include "engine/host/unit_homes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/run_id.hpp"
#include "base/units.hpp"
#include "engine/host/host_session.hpp"

namespace sluice::host {
namespace {

constexpr std::uint64_t kDirectBytes = 4096;  // storage moves whole sectors

std::unique_ptr<offload::StorageEngine> make_storage(const HostEngine& engine,
                                                     const PagerPlan& plan) {
  return plan.storage_bytes == 0 ? nullptr : engine.make_storage();
}

}  // namespace

UnitHomes::UnitHomes(HostEngine& engine, const std::vector<PagedUnit>& units, const PagerPlan& plan)
    : units_(units),
      plan_(plan),
      deadline_seconds_(engine.options().deadline_s),
      pinned_(engine.device(), engine.ledger(), plan.pinned_bytes, Category::kOptimizer),
      storage_(make_storage(engine, plan)) {
  const RunId run = make_run_id();
  space_ = std::make_unique<offload::StripedSpace>(
      storage_.get(), engine.ledger(), engine.options().storage_paths, plan.storage_bytes, run);
  tagged_ = std::make_unique<offload::TaggedSpace>(*space_, run);
  if (storage_ != nullptr) storage_->register_memory(pinned_.data(), pinned_.bytes());
  ranges_.resize(units.size());
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    for (const PagedPart part : kPagedParts) {
      if (!rests_on_storage(unit, part)) continue;
      const auto at = static_cast<std::size_t>(part);
      const char* const kind = part == PagedPart::kWeight ? "weights" : "state";
      ranges_[unit][at] =
          tagged_->add_range({std::string(kind) + " of unit '" + shown(units[unit].name) + "'",
                              std::uint64_t{unit} << 1 | at, plan.place(unit, part).offset_bytes,
                              stored_bytes(unit, part), kPagedBlockBytes});
    }
  }
}

// Storage engines end their requests before they go; until then the staging buffers must live.
UnitHomes::~UnitHomes() {
  MutexLock lock(mutex_);
  for (StagingBuffer& buffer : buffers_) buffer.next = kNone;
  static_cast<void>(changed_.wait_until(
      lock, Deadline::after_seconds(deadline_seconds_), [this]() SLUICE_REQUIRES(mutex_) {
        return std::all_of(buffers_.begin(), buffers_.end(),
                           [](const StagingBuffer& buffer) { return buffer.in_flight == 0; });
      }));
}

bool UnitHomes::rests_on_storage(std::uint32_t unit, PagedPart part) const {
  return plan_.place(unit, part).tier == Tier::kStorage && units_[unit].bytes_of(part) > 0;
}

bool UnitHomes::is_stored(std::uint32_t unit) const {
  return std::any_of(kPagedParts.begin(), kPagedParts.end(),
                     [&](PagedPart part) { return rests_on_storage(unit, part); });
}

std::uint64_t UnitHomes::stored_bytes(std::uint32_t unit, PagedPart part) const {
  return round_up(units_[unit].bytes_of(part), kDirectBytes);
}

std::byte* UnitHomes::home(std::uint32_t unit, PagedPart part) const {
  const PartPlace& place = plan_.place(unit, part);
  return place.tier == Tier::kPinned ? pinned_.at(place.offset_bytes) : nullptr;
}

std::byte* UnitHomes::staged(std::uint32_t unit, PagedPart part) const {
  if (std::byte* const resting = home(unit, part)) return resting;
  return pinned_.at(plan_.staging_offset_bytes +
                    (unit % kStagingBuffers) * plan_.staging_buffer_bytes +
                    plan_.place(unit, part).staged_bytes);
}

void UnitHomes::fill(const std::vector<PagedTensor>& tensors) {
  std::vector<std::vector<const PagedTensor*>> by_unit(units_.size());
  for (const PagedTensor& tensor : tensors) by_unit[tensor.unit].push_back(&tensor);
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    for (const PagedPart part : kPagedParts) {
      const std::uint64_t bytes = units_[unit].bytes_of(part);
      if (bytes == 0) continue;
      const bool stored = rests_on_storage(unit, part);
      std::memset(staged(unit, part), 0, stored ? stored_bytes(unit, part) : bytes);
    }
    for (const PagedTensor* tensor : by_unit[unit]) {
      if (tensor->data == nullptr) continue;
      std::memcpy(staged(unit, tensor->part) + tensor->offset_bytes, tensor->data, tensor->bytes);
    }
    for (const PagedPart part : kPagedParts) {
      if (!rests_on_storage(unit, part)) continue;
      tagged_->transfer(offload::StorageOp::kWrite, ranges_[unit][static_cast<std::size_t>(part)],
                        0, staged(unit, part), stored_bytes(unit, part));
    }
  }
}

void UnitHomes::check_writes() {
  if (!write_error_) return;
  try {
    std::rethrow_exception(write_error_);
  } catch (const SessionPoisoned&) {
    throw;
  } catch (const Error& error) {
    write_error_ = std::make_exception_ptr(
        SessionPoisoned(std::string("an earlier write of weights or state failed (") +
                        error.what() + "), so a unit's bytes are lost"));
    throw;
  }
}

void UnitHomes::wait_for(MutexLock& lock, const StagingBuffer& buffer) {
  const bool done = changed_.wait_until(lock, Deadline::after_seconds(deadline_seconds_),
                                        [&buffer]() SLUICE_REQUIRES(mutex_) {
                                          return buffer.in_flight == 0 && buffer.next == kNone;
                                        });
  if (!done) throw TimeoutError("the storage of a unit that is staged");
}

// The buffer is the unit's from now on; submit() follows, without the lock.
void UnitHomes::claim(StagingBuffer& buffer, std::uint32_t unit, bool writes) {
  buffer.unit = unit;
  buffer.is_writing = writes;
  buffer.error = nullptr;
  buffer.in_flight = static_cast<std::uint32_t>(
      std::count_if(kPagedParts.begin(), kPagedParts.end(),
                    [&](PagedPart part) { return rests_on_storage(unit, part); }));
}

// A storage engine may wait for room here, and its completions take the lock.
void UnitHomes::submit(std::uint32_t unit, bool writes) {
  for (const PagedPart part : kPagedParts) {
    if (!rests_on_storage(unit, part)) continue;
    try {
      tagged_->submit(writes ? offload::StorageOp::kWrite : offload::StorageOp::kRead,
                      ranges_[unit][static_cast<std::size_t>(part)], 0, staged(unit, part),
                      stored_bytes(unit, part),
                      [this, unit](const std::exception_ptr& error) { end_transfer(unit, error); });
    } catch (...) {
      end_transfer(unit, std::current_exception());
    }
  }
}

void UnitHomes::end_transfer(std::uint32_t unit, const std::exception_ptr& error) {
  std::uint32_t next = kNone;
  {
    const MutexLock lock(mutex_);
    StagingBuffer& buffer = buffer_of(unit);
    if (error && buffer.is_writing && !write_error_) write_error_ = error;
    if (error && !buffer.is_writing) buffer.error = error;
    if (--buffer.in_flight == 0 && buffer.next != kNone) {
      next = std::exchange(buffer.next, kNone);
      claim(buffer, next, /*writes=*/false);
    }
    // Under the lock: the destructor waits for this, and then the condition goes.
    changed_.notify_all();
  }
  if (next != kNone) submit(next, /*writes=*/false);
}

void UnitHomes::stage(std::uint32_t unit, std::optional<std::uint32_t> next) {
  MutexLock lock(mutex_);
  check_writes();
  if (is_stored(unit)) {
    StagingBuffer& buffer = buffer_of(unit);
    wait_for(lock, buffer);
    check_writes();
    if (buffer.unit != unit) {
      claim(buffer, unit, /*writes=*/false);
      lock.unlock();
      submit(unit, /*writes=*/false);
      lock.lock();
      wait_for(lock, buffer);
    }
    if (buffer.error) {
      buffer.unit = kNone;
      std::rethrow_exception(std::exchange(buffer.error, nullptr));
    }
  }
  if (!next || !is_stored(*next)) return;
  StagingBuffer& other = buffer_of(*next);
  if (&other == &buffer_of(unit) || other.unit == *next) return;
  if (other.in_flight > 0) {
    other.next = *next;
    return;
  }
  claim(other, *next, /*writes=*/false);
  lock.unlock();
  submit(*next, /*writes=*/false);
}

void UnitHomes::unstage(std::uint32_t unit) {
  MutexLock lock(mutex_);
  check_writes();
  if (!is_stored(unit)) return;
  StagingBuffer& buffer = buffer_of(unit);
  SLUICE_CHECK(buffer.unit == unit && buffer.in_flight == 0);
  claim(buffer, unit, /*writes=*/true);
  lock.unlock();
  submit(unit, /*writes=*/true);
}

void UnitHomes::settle() {
  MutexLock lock(mutex_);
  for (const StagingBuffer& buffer : buffers_) wait_for(lock, buffer);
  check_writes();
}

const std::byte* UnitHomes::page_in(std::uint32_t unit, PagedPart part, std::uint64_t first,
                                    std::uint64_t bytes, std::uint32_t piece) {
  if (const std::byte* const resting = home(unit, part)) return resting + first;
  std::byte* const into = pinned_.at(plan_.pieces_offset_bytes + piece * kPageInPieceBytes);
  const std::uint64_t end =
      first + bytes == units_[unit].bytes_of(part) ? stored_bytes(unit, part) : first + bytes;
  tagged_->transfer(offload::StorageOp::kRead, ranges_[unit][static_cast<std::size_t>(part)], first,
                    into, end - first);
  return into;
}

offload::StorageCounters UnitHomes::storage_counters() const {
  return storage_ == nullptr ? offload::StorageCounters{} : storage_->counters();
}

}  // namespace sluice::host
