#include "allocator/pinned_arena.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/log.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kHostPageBytes = 4 * kKiB;
constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

// Near the end of the range rounding would wrap around to a small arena; left as it is, no cap that
// a machine can have admits it, and mmap refuses it.
std::uint64_t whole_pages(std::uint64_t bytes) {
  const std::uint64_t rounded = round_up(bytes, kHostPageBytes);
  return rounded < bytes ? bytes : rounded;
}

// [bytes] of anonymous memory that starts at a huge page, so that all but the tail can be backed by
// them. The kernel aligns to huge pages by itself only since 6.7: reserve more, cut both ends off.
std::byte* map_huge_aligned(std::uint64_t bytes) {
  const std::uint64_t reserved_bytes = bytes + kHugePageBytes;
  SLUICE_CHECK(reserved_bytes > bytes);
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    throw DeviceError("pinned memory: mmap of " + format_bytes(bytes) +
                      " failed: " + std::strerror(errno));
  }
  auto* begin = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uint64_t head_bytes = round_up(address, kHugePageBytes) - address;
  const std::uint64_t tail_bytes = reserved_bytes - head_bytes - bytes;
  // munmap of whole pages that we own fails only where it would split past the kernel's limit of
  // mappings; the addresses then stay reserved, untouched and without memory.
  if (head_bytes > 0) static_cast<void>(::munmap(begin, head_bytes));
  if (tail_bytes > 0) static_cast<void>(::munmap(begin + head_bytes + bytes, tail_bytes));
  return begin + head_bytes;
}

// First touch: places every page on the NUMA node of the calling thread, now and not inside a step.
void touch(std::byte* data, std::uint64_t bytes) {
  for (std::uint64_t offset = 0; offset < bytes; offset += kHostPageBytes) {
    *static_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
}

bool lock_or_warn(std::byte* data, std::uint64_t bytes) {
  if (::mlock(data, bytes) == 0) return true;
  const int error_number = errno;
  std::string limit = "unknown";
  rlimit memlock{};
  if (::getrlimit(RLIMIT_MEMLOCK, &memlock) == 0) {
    limit = memlock.rlim_cur == RLIM_INFINITY ? "none" : format_bytes(memlock.rlim_cur);
  }
  log(LogLevel::kWarning, "pinned memory: " + format_bytes(bytes) + " stays unlocked (" +
                              std::strerror(error_number) + "; RLIMIT_MEMLOCK is " + limit +
                              "): the kernel may swap it out");
  return false;
}

}  // namespace

PinnedArena::PinnedArena(Device& device, Ledger& ledger, std::uint64_t bytes, Category category)
    : bytes_(whole_pages(bytes)) {
  charge_ = ledger.reserve(Tier::kPinned, category, bytes_);
  if (bytes_ == 0) return;
  data_ = map_huge_aligned(bytes_);
  try {
    // A hint: a kernel without transparent huge pages answers EINVAL and small pages do.
    static_cast<void>(::madvise(data_, bytes_, MADV_HUGEPAGE));
    touch(data_, bytes_);
    locked_ = lock_or_warn(data_, bytes_);
    registration_ = device.register_host(data_, bytes_);
  } catch (...) {
    // No destructor runs for an object that was never made.
    static_cast<void>(::munmap(data_, bytes_));
    throw;
  }
}

PinnedArena::~PinnedArena() {
  registration_ = HostRegistration();
  if (data_ != nullptr) static_cast<void>(::munmap(data_, bytes_));  // unlocks too
}

std::byte* PinnedArena::at(std::uint64_t offset_bytes) const {
  SLUICE_CHECK(offset_bytes <= bytes_);
  return data_ + offset_bytes;
}

}  // namespace sluice
