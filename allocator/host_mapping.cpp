#include "allocator/host_mapping.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.hpp"

namespace sluice::allocator {
namespace {

// Extra bytes that mmap reserves: one huge page, because the kernel aligns to huge pages by itself
// only since 6.7 (the ends are cut off), and the two guard pages.
constexpr std::uint64_t kSlackBytes = kHugePageBytes + 2 * kHostPageBytes;

[[noreturn]] void throw_refused(const char* call, std::uint64_t bytes, int error_number) {
  throw DeviceError("pinned memory: " + std::string(call) + " of " + format_bytes(bytes) +
                    " failed: " + std::strerror(error_number));
}

// "7f0000200000-7f0000400000 rw-p ...": the first line of a mapping in smaps; false for others.
bool parse_range(const std::string& line, std::uintptr_t& begin, std::uintptr_t& end) {
  const char* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, begin, 16);
  if (first.ec != std::errc() || first.ptr == last || *first.ptr != '-') return false;
  return std::from_chars(first.ptr + 1, last, end, 16).ec == std::errc();
}

}  // namespace

HostMapping::HostMapping(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::uint64_t reserved_bytes = bytes + kSlackBytes;
  if (reserved_bytes < bytes) throw_refused("mmap", bytes, ENOMEM);
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw_refused("mmap", bytes, errno);
  auto* const first = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  std::byte* const begin = first + (round_up(address + kHostPageBytes, kHugePageBytes) - address);
  if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) {
    const int error_number = errno;
    static_cast<void>(::munmap(first, reserved_bytes));
    throw_refused("mprotect", bytes, error_number);
  }
  std::byte* const head_end = begin - kHostPageBytes;
  std::byte* const tail = begin + bytes + kHostPageBytes;
  std::byte* const last = first + reserved_bytes;
  // munmap of our own whole pages fails only at the kernel's limit of mappings. The addresses then
  // stay reserved, inaccessible and without memory.
  if (head_end > first) static_cast<void>(::munmap(first, head_end - first));
  if (last > tail) static_cast<void>(::munmap(tail, last - tail));
  static_cast<void>(::madvise(begin, bytes, MADV_HUGEPAGE));
  // A child of fork() does not get these pages. If it did, the first write after the fork would
  // give this process new pages, while a device or io_uring went on using the old ones.
  if (::madvise(begin, bytes, MADV_DONTFORK) != 0) {
    const int error_number = errno;
    static_cast<void>(::munmap(begin - kHostPageBytes, bytes + 2 * kHostPageBytes));
    throw_refused("madvise", bytes, error_number);
  }
  data_ = begin;
}

HostMapping::~HostMapping() {
  // This also unlocks the pages.
  if (data_ != nullptr) {
    static_cast<void>(::munmap(data_ - kHostPageBytes, bytes_ + 2 * kHostPageBytes));
  }
}

std::uint64_t HostMapping::huge_page_bytes() const {
  const auto own_begin = reinterpret_cast<std::uintptr_t>(data_);
  const std::uintptr_t own_end = own_begin + bytes_;
  constexpr const char* kKey = "AnonHugePages:";
  std::uint64_t huge_bytes = 0;
  bool own = false;  // a region bound to several nodes is several mappings for the kernel
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (parse_range(line, begin, end)) {
      own = begin >= own_begin && end <= own_end;
    } else if (own && line.starts_with(kKey)) {
      huge_bytes += std::strtoull(line.c_str() + std::strlen(kKey), nullptr, 10) * kKiB;
    }
  }
  return huge_bytes;
}

}  // namespace sluice::allocator
