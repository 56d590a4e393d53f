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
// Newer versions let large_segment_size_mb change it; no record so far says so.
inline constexpr std::uint64_t kTorchLargeBuffer = std::uint64_t{20} << 20;
inline constexpr std::uint64_t kTorchMinLarge = std::uint64_t{10} << 20;
inline constexpr std::uint64_t kTorchRoundLarge = std::uint64_t{2} << 20;

// The segment that a rounded size is given where no free block serves.
constexpr std::uint64_t torch_segment_bytes(std::uint64_t rounded_bytes) {
  if (rounded_bytes <= kTorchSmallSize) return kTorchSmallBuffer;
  if (rounded_bytes < kTorchMinLarge) return kTorchLargeBuffer;
  return round_up(rounded_bytes, kTorchRoundLarge);
}

// round_size under a trace's roundup_power2_divisions, one for each power of two from 1 MiB; all
// below go by the first, all from 32 GiB by the last.
class TorchRounding {
 public:
  explicit TorchRounding(const record::MemoryTrace& trace);
  std::uint64_t operator()(std::uint64_t bytes) const;

 private:
  static constexpr std::size_t kIntervals = 16;
  std::array<std::uint64_t, kIntervals> divisions_{};
};

}  // namespace sluice::replay
