#include "engine/host/unit_windows.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::host {

UnitWindows::UnitWindows(device::Device& device, allocator::Ledger& ledger,
                         const std::vector<PagedUnit>& units, const PagerPlan& plan)
    : device_(device), slot_bytes_(plan.slot_bytes), free_slots_(plan.slot_count) {
  for (std::uint32_t i = 0; i < plan.slot_count; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.charge = ledger.reserve(Tier::kDevice, Category::kWeight, slot_bytes_);
    slot.block = device.create_block(slot_bytes_);
  }
  for (const PagedUnit& unit : units) {
    Window& window = windows_.emplace_back();
    const std::uint64_t pages = ceil_div(unit.bytes_of(PagedPart::kWeight), slot_bytes_);
    if (pages > 0) window.range = device.reserve(pages * slot_bytes_);
    window.mappings.resize(pages);
    window.mapped.assign(pages, kNone);
    window.slots.assign(pages, kNone);
  }
}

void UnitWindows::take(std::uint32_t unit, std::size_t page, std::uint32_t slot) {
  windows_[unit].slots[page] = slot;
  slots_[slot].owner = unit;
  --free_slots_;
}

std::optional<std::vector<std::uint32_t>> UnitWindows::claim(std::uint32_t unit,
                                                             std::uint64_t least,
                                                             const Rank& rank) {
  Window& window = windows_[unit];
  SLUICE_CHECK(!window.is_claimed);
  struct Victim {
    std::uint32_t unit;
    std::uint64_t rank;
    bool is_in_the_way;  // in a slot where this unit's addresses lead
  };
  std::vector<Victim> victims;
  std::uint64_t within_reach = free_slots_;
  for (std::uint32_t other = 0; other < windows_.size(); ++other) {
    if (!windows_[other].is_claimed) continue;
    const std::uint64_t found = rank(other);
    if (found == kKeep || found <= least) continue;
    const std::vector<std::uint32_t>& theirs = windows_[other].slots;
    const bool in_the_way = std::any_of(theirs.begin(), theirs.end(), [&](std::uint32_t slot) {
      return std::find(window.mapped.begin(), window.mapped.end(), slot) != window.mapped.end();
    });
    victims.push_back({other, found, in_the_way});
    within_reach += theirs.size();
  }
  if (within_reach < window.slots.size()) return std::nullopt;
  std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) {
    return a.is_in_the_way != b.is_in_the_way ? a.is_in_the_way : a.rank > b.rank;
  });
  std::vector<std::uint32_t> evicted;
  for (const Victim& victim : victims) {
    if (free_slots_ >= window.slots.size()) break;
    release(victim.unit);
    evicted.push_back(victim.unit);
  }
  window.is_claimed = true;
  // First the pages that lead to a free slot already, so that no other page takes it.
  for (std::size_t page = 0; page < window.slots.size(); ++page) {
    const std::uint32_t slot = window.mapped[page];
    if (slot != kNone && slots_[slot].owner == kNone) take(unit, page, slot);
  }
  std::uint32_t next = 0;
  for (std::size_t page = 0; page < window.slots.size(); ++page) {
    if (window.slots[page] != kNone) continue;
    while (slots_[next].owner != kNone) ++next;
    take(unit, page, next);
  }
  return evicted;
}

void UnitWindows::release(std::uint32_t unit) {
  for (const std::uint32_t slot : windows_[unit].slots) slots_[slot].former = unit;
  cancel(unit);
}

void UnitWindows::cancel(std::uint32_t unit) {
  Window& window = windows_[unit];
  SLUICE_CHECK(window.is_claimed);
  for (std::uint32_t& slot : window.slots) {
    slots_[slot].owner = kNone;
    slot = kNone;
    ++free_slots_;
  }
  window.is_claimed = false;
}

std::vector<std::uint32_t> UnitWindows::take_former_owners(std::uint32_t unit) {
  std::vector<std::uint32_t> owners;
  for (const std::uint32_t slot : windows_[unit].slots) {
    const std::uint32_t former = std::exchange(slots_[slot].former, kNone);
    if (former != kNone && std::find(owners.begin(), owners.end(), former) == owners.end()) {
      owners.push_back(former);
    }
  }
  return owners;
}

bool UnitWindows::needs_mapping(std::uint32_t unit) const {
  return windows_[unit].slots != windows_[unit].mapped;
}

std::uint64_t UnitWindows::map(std::uint32_t unit) {
  Window& window = windows_[unit];
  std::uint64_t changed = 0;
  for (std::size_t page = 0; page < window.slots.size(); ++page) {
    if (window.slots[page] == window.mapped[page]) continue;
    window.mappings[page] = {};
    window.mapped[page] = kNone;
    window.mappings[page] =
        device_.map(window.range, page * slot_bytes_, slots_[window.slots[page]].block);
    window.mapped[page] = window.slots[page];
    ++changed;
  }
  return changed;
}

}  // namespace sluice::host
