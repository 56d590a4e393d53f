// Device memory for the weights of a pager's units: every unit has one address for life, and equal
// slots of memory are mapped below the units that need them.
//
// A unit reserves its addresses once. claim() gives it slots, and map() makes its addresses lead
// there. Several units' addresses may lead to one slot; only the unit that claimed it last may be
// read. A unit prefers the slots where its addresses lead already, and to have those it evicts the
// units in them, so a program with a steady order maps each window once.
//
//   unit 0  [A][B]      unit 2 claims A and B: unit 0 is evicted, its addresses stay as they are.
//   unit 1  [C]         Later unit 0 claims A and B again, and nothing is mapped.
//   unit 2  [A][B]
//
// Threads: claim(), evict() and the like under the owner's lock; map() on one thread, for a unit
// with claimed slots that nobody else claims or releases meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/ledger.hpp"
#include "device/device.hpp"
#include "engine/host/paged_units.hpp"

namespace sluice::host {

class UnitWindows {
 public:
  // Takes all device memory. Throws OutOfMemory, DeviceError.
  UnitWindows(device::Device& device, allocator::Ledger& ledger,
              const std::vector<PagedUnit>& units, const PagerPlan& plan);

  std::byte* address(std::uint32_t unit) const { return windows_[unit].range.data(); }
  std::uint64_t slots_of(std::uint32_t unit) const { return windows_[unit].slots.size(); }
  std::uint64_t free_slots() const { return free_slots_; }

  // A unit that holds a claim and may lose it has a number: the larger, the sooner. kKeep: it must
  // not lose it.
  static constexpr std::uint64_t kKeep = 0;
  using Rank = std::function<std::uint64_t(std::uint32_t unit)>;
  // Gives the unit its slots, if need be from units with a rank above `least`, which lose all of
  // theirs and are returned. Returns nothing, and changes nothing, if there are too few.
  std::optional<std::vector<std::uint32_t>> claim(std::uint32_t unit, std::uint64_t least,
                                                  const Rank& rank);
  void release(std::uint32_t unit);
  // As release(), of a unit whose slots were not written since its claim: the owners before it may
  // still use them.
  void cancel(std::uint32_t unit);

  // Units that held the slots of `unit` before it claimed them; their last uses must end before the
  // slots are written. Cleared by the call.
  std::vector<std::uint32_t> take_former_owners(std::uint32_t unit);
  // Makes the unit's addresses lead to its slots. Returns the number of pages that changed.
  // Precondition: nothing uses the addresses.
  std::uint64_t map(std::uint32_t unit);
  // Whether map() would change something.
  bool needs_mapping(std::uint32_t unit) const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Slot {
    allocator::Reservation charge;  // destroyed after the block
    device::PhysicalBlock block;
    std::uint32_t owner = kNone;   // the unit that claims it
    std::uint32_t former = kNone;  // the last owner that has written it
  };
  struct Window {
    device::AddressRange range;
    std::vector<device::Mapping> mappings;  // by page; destroyed before the range
    std::vector<std::uint32_t> mapped;      // the slot below each page; kNone: none yet
    std::vector<std::uint32_t> slots;       // claimed, by page
    bool is_claimed = false;
  };
  void take(std::uint32_t unit, std::size_t page, std::uint32_t slot);

  device::Device& device_;
  const std::uint64_t slot_bytes_;
  std::vector<Slot> slots_;
  std::vector<Window> windows_;  // by unit
  std::uint64_t free_slots_ = 0;
};

}  // namespace sluice::host
