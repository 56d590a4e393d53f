// The units of a pager: tensors that are moved together, as bytes without a type.
//
// A unit has two parts. Its weights come to a window on the device for a pass; weights and
// optimizer state come to pinned memory for an update. Each part rests in pinned memory or on
// storage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"
#include "engine/host/session_plan.hpp"

namespace sluice::host {

enum class PagedPart : std::uint8_t { kWeight, kState };
inline constexpr std::size_t kPagedPartCount = 2;
inline constexpr std::array<PagedPart, kPagedPartCount> kPagedParts{PagedPart::kWeight,
                                                                    PagedPart::kState};

struct PagedTensor {
  std::uint32_t unit = 0;
  PagedPart part = PagedPart::kWeight;
  std::uint64_t bytes = 0;
  std::uint64_t offset_bytes = 0;  // in its part
  const void* data = nullptr;      // initial bytes, read by seal(); null: zeros
};

struct PagedUnit {
  std::string name;
  std::array<std::uint64_t, kPagedPartCount> part_bytes{};
  std::uint64_t bytes_of(PagedPart part) const {
    return part_bytes[static_cast<std::size_t>(part)];
  }
};

// The place of one part, in a pager that is planned.
struct PartPlace {
  Tier tier = Tier::kPinned;
  std::uint64_t offset_bytes = 0;  // of its home, in its tier
  std::uint64_t staged_bytes = 0;  // in the unit's staging buffer, if it rests on storage
};

struct PagerPlan {
  std::vector<std::array<PartPlace, kPagedPartCount>> places;  // by unit
  std::uint32_t slot_count = 0;
  std::uint64_t slot_bytes = 0;
  // Pinned memory: homes, then the staging buffers, then the pieces on their way to windows.
  std::uint64_t staging_offset_bytes = 0;
  std::uint64_t staging_buffer_bytes = 0;  // of one
  std::uint64_t pieces_offset_bytes = 0;
  std::uint64_t pinned_bytes = 0;
  std::uint64_t storage_bytes = 0;

  const PartPlace& place(std::uint32_t unit, PagedPart part) const {
    return places[unit][static_cast<std::size_t>(part)];
  }
  std::array<std::uint64_t, kTierCount> bytes() const {
    return {slot_count * slot_bytes, pinned_bytes, storage_bytes};
  }
};

struct PagerOptions {
  StatePlace weights = StatePlace::kAuto;
  StatePlace state = StatePlace::kAuto;
  std::uint64_t window_bytes = 0;  // most device memory of windows; 0: the rest of the budget
};

// Staging buffers of an update: one unit is updated while the one before it is written and the next
// one read in the other buffer.
inline constexpr std::uint32_t kStagingBuffers = 2;
// Weights go from storage to windows in so many pieces of so many bytes at once.
inline constexpr std::uint64_t kPageInPieceBytes = std::uint64_t{1} << 20;
inline constexpr std::uint32_t kPageInPieces = 2;
// A tag covers so many bytes of a part on storage.
inline constexpr std::uint64_t kPagedBlockBytes = std::uint64_t{16} << 10;

// Chooses the tier of each part: pinned memory as far as it reaches, state goes to storage before
// weights, and later units before earlier ones. budgets: the bytes that are left of each tier.
// Throws Refused with the least change, and InputError if there is no weight.
PagerPlan plan_pager(const std::vector<PagedUnit>& units, const PagerOptions& options,
                     std::uint64_t slot_bytes,
                     const std::array<std::uint64_t, kTierCount>& budgets_bytes);

}  // namespace sluice::host
