// Anonymous host memory at an address that huge pages can back. Nothing is there until it is
// touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.hpp"

namespace sluice::allocator {

inline constexpr std::uint64_t kHostPageBytes = 4 * kKiB;
inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;  // x86-64; on ARM where pages are 4 KiB

// Starts at a multiple of kHugePageBytes, so that all but the tail can be huge pages, and asks for
// them (madvise: a hint, a kernel without them does with small ones). One page on either side stays
// forbidden: it takes no memory, a run past the end faults, and no neighbour's mapping is merged
// with this one, so that the kernel's figures are of these bytes alone.
class HostMapping {
 public:
  // bytes: whole pages, or 0 for none. Throws DeviceError.
  explicit HostMapping(std::uint64_t bytes);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // How much of it huge pages back now (/proc/self/smaps, AnonHugePages; 0 where it cannot be
  // read). The kernel walks the page tables of the whole process for this: not for inner loops.
  std::uint64_t huge_page_bytes() const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice::allocator
