// Anonymous host memory at an address that huge pages can back. Pages exist only after a first
// touch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.hpp"

namespace sluice::allocator {

inline constexpr std::uint64_t kHostPageBytes = 4 * kKiB;
inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;  // x86-64, and ARM with pages of 4 KiB

// The mapping starts at a multiple of kHugePageBytes, so that all but the tail can be huge pages,
// and requests them by madvise (a hint: a kernel without huge pages uses small ones). One guard
// page on either side takes no memory. An access beyond the ends faults there, and the kernel
// cannot merge neighbouring mappings with this one, so its figures count these bytes alone.
class HostMapping {
 public:
  // bytes: whole pages, or 0 for none. Throws DeviceError.
  explicit HostMapping(std::uint64_t bytes);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // The bytes that huge pages back now (AnonHugePages in /proc/self/smaps; 0 if it cannot be read).
  // The kernel walks the page tables of the whole process for this, so it is slow.
  std::uint64_t huge_page_bytes() const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice::allocator
