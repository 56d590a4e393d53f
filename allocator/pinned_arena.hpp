// Pinned host memory: one region with a fixed address and exact size. Its pages lie on the wanted
// NUMA nodes. It is registered with the device, and once with the storage engine.
//
// The waste (charged minus requested bytes) is less than one 4 KiB page: none for whole pages,
// under 1% from 400 KiB up. Beyond the charge the region costs only page tables (0.2% with small
// pages) and addresses.
//
// The ledger's cap is the only limit checked here. The caller must check that the machine has the
// memory: training and planning refuse budgets above the rest of the host and its control groups
// (engine/planner/machine_check).
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
  // The region is registered with the device in pieces of this size (the last may be smaller), a
  // multiple of kHugePageBytes. NVIDIA's driver refuses 512 GiB and more in one piece (its page
  // table, 16 bytes a page, exceeds INT_MAX bytes: pull request 1234 of open-gpu-kernel-modules),
  // and a single call cannot be interrupted.
  std::uint64_t registration_piece_bytes = 8 * kGiB;
  const NumaMachine* machine = nullptr;  // null: read this machine
};

class PinnedArena {
 public:
  // Charges the ledger (tier pinned, `category`), maps the region, places and touches every page
  // (with threads that end before this returns), locks the pages and registers them with `device`.
  // bytes may be 0; data() is then null. If a step throws, the earlier ones are undone.
  //
  // Throws OutOfMemory if the ledger's cap forbids it, InputError if the node does not exist, and
  // DeviceError if the kernel or the device refuses. A refused lock (RLIMIT_MEMLOCK) is only a
  // warning: the memory works, and the kernel swaps it out only under pressure. A failed
  // registration is an error: copies from unregistered memory are synchronous, and no plan would
  // hold.
  PinnedArena(device::Device& device, Ledger& ledger, std::uint64_t bytes, Category category,
              const PinnedArenaOptions& options = {});
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // Precondition: offset_bytes <= bytes(), so the end has an address too.
  std::byte* at(std::uint64_t offset_bytes) const;
  std::byte* data() const { return mapping_.data(); }
  std::uint64_t bytes() const { return mapping_.bytes(); }  // the charge: whole 4 KiB pages
  bool locked() const { return locked_; }
  // Bytes that huge pages back now; see HostMapping.
  std::uint64_t huge_page_bytes() const { return mapping_.huge_page_bytes(); }

 private:
  // Released from the last to the first, by the destructor or by a constructor that throws.
  Reservation charge_;
  HostMapping mapping_;
  bool locked_ = false;
  std::vector<device::HostRegistration> registrations_;
};

}  // namespace sluice::allocator
