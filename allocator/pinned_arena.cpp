#include "allocator/pinned_arena.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "base/log.hpp"

namespace sluice::allocator {
namespace {

// Rounds up to whole pages. Near 2^64 that would wrap around to a small size, so such a value stays
// as it is: no real cap admits it, and mmap refuses it.
std::uint64_t whole_pages(std::uint64_t bytes) {
  const std::uint64_t rounded = round_up(bytes, kHostPageBytes);
  return rounded < bytes ? bytes : rounded;
}

void touch_where_wanted(const HostMapping& mapping, const device::DeviceFacts& device,
                        const PinnedArenaOptions& options) {
  std::unique_ptr<NumaMachine> read;
  if (options.machine == nullptr) read = read_numa_machine();
  const NumaMachine& machine = options.machine == nullptr ? *read : *options.machine;
  const int node =
      options.placement == NumaPlacement::kNearDevice ? device.numa_node : options.node;
  const std::vector<NodeShare> shares =
      share_among_nodes(mapping.bytes(), machine.nodes(), options.placement, node);
  first_touch(mapping.data(), shares, machine);
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

PinnedArena::PinnedArena(device::Device& device, Ledger& ledger, std::uint64_t bytes,
                         Category category, const PinnedArenaOptions& options)
    : charge_(ledger.reserve(Tier::kPinned, category, whole_pages(bytes))),
      mapping_(whole_pages(bytes)) {
  const std::uint64_t piece_bytes = options.registration_piece_bytes;
  SLUICE_CHECK(piece_bytes > 0 && piece_bytes % kHugePageBytes == 0);
  if (mapping_.bytes() == 0) return;
  touch_where_wanted(mapping_, device.facts(), options);
  locked_ = lock_or_warn(mapping_.data(), mapping_.bytes());
  registrations_.reserve(ceil_div(mapping_.bytes(), piece_bytes));
  for (std::uint64_t offset = 0; offset < mapping_.bytes(); offset += piece_bytes) {
    registrations_.push_back(device.register_host(
        mapping_.data() + offset, std::min(piece_bytes, mapping_.bytes() - offset)));
  }
}

std::byte* PinnedArena::at(std::uint64_t offset_bytes) const {
  SLUICE_CHECK(offset_bytes <= bytes());
  return data() + offset_bytes;
}

}  // namespace sluice::allocator
