// The sizes of PyTorch's caching allocator. Source: c10/cuda/
// CUDACachingAllocator.cpp (round_size, get_allocation_size) and CUDAAllocatorConfig.cpp; since
// 2.9 the settings are read in c10/core/AllocatorConfig.cpp, with the same values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/record/memory_trace.hpp"
#include "base/units.hpp"

namespace sluice::replay {

inline constexpr std::uint64_t kTorchMinBlock = 512;
inline constexpr std::uint64_t kTorchSmallSize = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kTorchSmallBuffer = std::uint64_t{2} << 20;
// Newer versions have a setting for it, large_segment_size_mb. No record carries that yet.
inline constexpr std::uint64_t kTorchLargeBuffer = std::uint64_t{20} << 20;
inline constexpr std::uint64_t kTorchMinLarge = std::uint64_t{10} << 20;
inline constexpr std::uint64_t kTorchRoundLarge = std::uint64_t{2} << 20;

// The size of a new segment for a rounded size.
constexpr std::uint64_t torch_segment_bytes(std::uint64_t rounded_bytes) {
  if (rounded_bytes <= kTorchSmallSize) return kTorchSmallBuffer;
  if (rounded_bytes < kTorchMinLarge) return kTorchLargeBuffer;
  return round_up(rounded_bytes, kTorchRoundLarge);
}

// round_size with a trace's roundup_power2_divisions. There is one setting for each power of two
// from 1 MiB. Smaller sizes use the first, and sizes from 32 GiB on the last.
class TorchRounding {
 public:
  explicit TorchRounding(const record::MemoryTrace& trace);
  std::uint64_t operator()(std::uint64_t bytes) const;

 private:
  static constexpr std::size_t kIntervals = 16;
  std::array<std::uint64_t, kIntervals> divisions_{};
};

}  // namespace sluice::replay
