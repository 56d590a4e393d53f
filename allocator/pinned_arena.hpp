// Pinned host memory: one stable region of exact size, each page on the NUMA node that is wanted,
// registered with the device and once with the storage engine.
//
// Waste, charged minus asked, is less than one 4 KiB page: none for whole pages, under 1% from
// 400 KiB up whatever the size. Beside what is charged the machine gives only page tables (0.2%
// where pages are small) and addresses.
//
// Whether the machine has the memory is the caller's to know before: training and planning refuse
// budgets above what the host and its control groups leave (engine/planner/machine_check). Here the
// ledger's cap is the only limit that is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/first_touch.hpp"
#include "allocator/host_mapping.hpp"
#include "allocator/ledger.hpp"
#include "device/device.hpp"

namespace sluice::allocator {

struct PinnedArenaOptions {
  NumaPlacement placement = NumaPlacement::kNearDevice;
  int node = -1;  // OS index, for NumaPlacement::kNode
  // The device is told of the region in pieces of this size, the last one smaller: NVIDIA's driver
  // refuses 512 GiB and more in one (its page table, 16 bytes a page, passes INT_MAX bytes: pull
  // request 1234 of open-gpu-kernel-modules), and one call cannot be broken off. A multiple of
  // kHugePageBytes.
  std::uint64_t registration_piece_bytes = 8 * kGiB;
  const NumaMachine* machine = nullptr;  // null: this one is read
};

class PinnedArena {
 public:
  // Charges the ledger (tier pinned, `category`), maps, places and touches every page (by threads
  // that have ended when this returns), locks, registers with `device`. bytes may be 0: data() is
  // then null. Whatever throws leaves nothing behind.
  //
  // Throws OutOfMemory where the ledger's cap forbids it, InputError for a node that is not there,
  // DeviceError where the kernel or the device refuses. RLIMIT_MEMLOCK in the way is a warning: the
  // memory works, and the kernel swaps it out only under pressure. A failed registration is an
  // error: copies from unregistered memory wait for themselves, so that no plan would hold.
  PinnedArena(device::Device& device, Ledger& ledger, std::uint64_t bytes, Category category,
              const PinnedArenaOptions& options = {});
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // offset_bytes <= bytes(): the end has an address too.
  std::byte* at(std::uint64_t offset_bytes) const;
  std::byte* data() const { return mapping_.data(); }
  std::uint64_t bytes() const { return mapping_.bytes(); }  // what is charged: whole 4 KiB pages
  bool locked() const { return locked_; }
  // Bytes that huge pages back now; see HostMapping.
  std::uint64_t huge_page_bytes() const { return mapping_.huge_page_bytes(); }

 private:
  // Given back from the last to the first, by the destructor or by a constructor that throws.
  Reservation charge_;
  HostMapping mapping_;
  bool locked_ = false;
  std::vector<device::HostRegistration> registrations_;
};

}  // namespace sluice::allocator
