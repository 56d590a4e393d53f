// The needs of several schedules are joined before anything is allocated: slots, arenas and storage
// take the largest need of any schedule, and homes are the same in all. Device slots come first,
// then the device arena, the pinned arena and the files. Each charges the ledger before its own
// system call, so a budget is never exceeded, not even for a moment. A content key names the bytes
// of a home in every run, which lets checks tell a stale block from a fresh one.
#include "engine/runtime/run_memory.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::runtime {
namespace {

constexpr std::uint64_t kPinnedPageBytes = 4096;

// A content has one key in all runs. Kind, unit and micro-batch make the key.
std::uint64_t content_key(const schedule::Buffer& buffer) {
  const auto field = [](std::int32_t value) {
    return static_cast<std::uint64_t>(std::int64_t{value} + 1);
  };
  return field(buffer.unit) << 40 | field(buffer.microbatch) << 16 |
         static_cast<std::uint64_t>(buffer.role) << 8 | static_cast<std::uint64_t>(buffer.kind);
}

// The bytes that no cut of the buffer divides. Spilled activations come in pieces of as many bytes
// as fp32 state.
std::uint64_t tagged_bytes(const schedule::Buffer& buffer) {
  return bytes_of(buffer.role == schedule::BufferRole::kState ? buffer.dtype : DType::kF32,
                  kLawBlockElems);
}

std::string content_name(const schedule::Buffer& buffer) {
  const bool state = buffer.role == schedule::BufferRole::kState;
  std::string name(state ? state_kind_name(buffer.kind) : schedule::role_name(buffer.role));
  if (buffer.unit >= 0) name += " of unit " + std::to_string(buffer.unit);
  if (buffer.microbatch >= 0) name += ", micro-batch " + std::to_string(buffer.microbatch);
  return name;
}

// Extends the need to the end of the buffer's place.
void include_place(MemoryNeed& need, const schedule::Buffer& buffer) {
  const std::uint64_t end = buffer.offset_bytes + schedule::place_bytes(buffer);
  if (buffer.window) {
    for (const std::uint32_t slot : buffer.slots)
      need.slot_count = std::max(need.slot_count, slot + 1);
    return;
  }
  switch (buffer.tier) {
    case Tier::kDevice:
      need.device_arena_bytes = std::max(need.device_arena_bytes, end);
      return;
    case Tier::kPinned:
      need.pinned_bytes = std::max(need.pinned_bytes, end);
      return;
    case Tier::kStorage:
      need.storage_bytes =
          std::max(need.storage_bytes, round_up(end, schedule::kDirectAlignmentBytes));
      return;
  }
}

}  // namespace

std::array<std::uint64_t, kTierCount> MemoryNeed::peak_bytes() const {
  return {schedule::device_peak_bytes(slot_count * slot_bytes, device_arena_bytes, shares_device),
          round_up(pinned_bytes, kPinnedPageBytes) + fixed.staging_bytes,
          storage_bytes + fixed.log_bytes};
}

void MemoryNeed::include(const MemoryNeed& other) {
  SLUICE_CHECK(shares_device == other.shares_device);
  slot_count = std::max(slot_count, other.slot_count);
  slot_bytes = std::max(slot_bytes, other.slot_bytes);
  device_arena_bytes = std::max(device_arena_bytes, other.device_arena_bytes);
  pinned_bytes = std::max(pinned_bytes, other.pinned_bytes);
  storage_bytes = std::max(storage_bytes, other.storage_bytes);
  fixed.log_bytes = std::max(fixed.log_bytes, other.fixed.log_bytes);
  fixed.staging_bytes = std::max(fixed.staging_bytes, other.fixed.staging_bytes);
}

std::uint64_t persistent_pinned_bytes(const schedule::Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const schedule::Buffer& buffer : schedule.buffers) {
    if (buffer.persistent && buffer.tier == Tier::kPinned) {
      bytes = std::max(bytes, buffer.offset_bytes + buffer.bytes);
    }
  }
  return round_up(bytes, kPinnedPageBytes);
}

MemoryNeed memory_need(std::span<const schedule::Schedule* const> schedules,
                       std::uint64_t io_buffer_bytes) {
  MemoryNeed need;
  for (const schedule::Schedule* schedule : schedules) {
    need.slot_count = std::max(need.slot_count, schedule->slot_count);
    need.slot_bytes = schedule->slot_bytes;
    SLUICE_CHECK(schedule->shares_device == schedules.front()->shares_device);
    need.shares_device = schedule->shares_device;
    need.device_arena_bytes = std::max(need.device_arena_bytes, schedule->device_arena_bytes);
    need.pinned_bytes = std::max({need.pinned_bytes, schedule->pinned_arena_bytes,
                                  persistent_pinned_bytes(*schedule) + io_buffer_bytes});
    need.storage_bytes = std::max(need.storage_bytes, schedule->peak_bytes[2]);
  }
  return need;
}

MemoryNeed resting_need(const schedule::Schedule& schedule) {
  MemoryNeed need;
  need.slot_bytes = schedule.slot_bytes;
  need.shares_device = schedule.shares_device;
  for (const schedule::Buffer& buffer : schedule.buffers) {
    if (buffer.persistent) include_place(need, buffer);
  }
  return need;
}

RunMemory::RunMemory(device::Device& device, allocator::Ledger& ledger,
                     offload::StorageEngine* engine, const std::vector<std::string>& storage_paths,
                     const MemoryNeed& need, const RunId& run, bool kept,
                     const std::vector<std::uint32_t>& shares)
    : pages_(device, ledger, std::max(need.slot_bytes, device.facts().granularity_bytes)),
      slots_(device, pages_, need.slot_count, Category::kWeight),
      arena_(device, pages_, need.device_arena_bytes, Category::kActivation,
             need.shares_device ? &slots_ : nullptr),
      pinned_(device, ledger, need.pinned_bytes, Category::kOptimizer),
      staging_(device, ledger, need.fixed.staging_bytes, Category::kCommunication),
      space_(engine, ledger, storage_paths, need.storage_bytes, run, kept, shares),
      storage_(space_, run),
      pinned_bytes_(need.pinned_bytes) {
  nothing_.slot_bytes = need.slot_bytes;
  nothing_.shares_device = need.shares_device;
  handed_out_ = nothing_;
  if (need.storage_bytes > 0) engine->register_memory(pinned_.data(), pinned_.bytes());
}

RunMemory::CopyRanges RunMemory::storage_ranges(const schedule::Buffer& buffer) {
  include_place(handed_out_, buffer);
  CopyRanges ranges{};
  for (std::uint64_t copy = 0; copy < ranges.size(); ++copy) {
    if (copy >= static_cast<std::uint64_t>(buffer.versions)) {
      ranges[copy] = ranges[0];
      continue;
    }
    // Other versions of the same content are other content: of another copy, or in a shadow's
    // place.
    const std::uint64_t shadow = buffer.shadow_of == schedule::kNoId ? 0 : 2;
    ranges[copy] =
        storage_.add_range({content_name(buffer), content_key(buffer) | (copy + shadow) << 60,
                            buffer.offset_bytes + copy * version_stride_bytes(buffer), buffer.bytes,
                            tagged_bytes(buffer)});
  }
  return ranges;
}

std::span<std::byte> RunMemory::io_buffer(std::uint64_t persistent_pinned_bytes,
                                          std::uint64_t bytes) {
  SLUICE_CHECK(persistent_pinned_bytes + bytes <= pinned_bytes_);
  handed_out_.pinned_bytes = std::max(handed_out_.pinned_bytes, persistent_pinned_bytes + bytes);
  return {pinned_.at(persistent_pinned_bytes), bytes};
}

MemoryNeed RunMemory::take_handed_out() {
  return std::exchange(handed_out_, nothing_);
}

std::byte* RunMemory::address(const schedule::Buffer& buffer) {
  include_place(handed_out_, buffer);
  switch (buffer.tier) {
    case Tier::kPinned:
      return pinned_.at(buffer.offset_bytes);
    case Tier::kStorage:
      throw InternalError("a storage buffer has no address");
    case Tier::kDevice:
      break;
  }
  if (!buffer.window) return arena_.at(buffer.offset_bytes);
  const auto [it, fresh] = windows_.try_emplace(buffer.slots, nullptr);
  if (fresh) it->second = slots_.map_window(buffer.slots);
  return it->second;
}

}  // namespace sluice::runtime
