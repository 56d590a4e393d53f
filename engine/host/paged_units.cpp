#include "engine/host/paged_units.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::host {
namespace {

constexpr std::uint64_t kPinnedPageBytes = 4096;
constexpr auto kDevice = static_cast<std::size_t>(Tier::kDevice);
constexpr auto kPinned = static_cast<std::size_t>(Tier::kPinned);
constexpr auto kStorage = static_cast<std::size_t>(Tier::kStorage);

using Budgets = std::array<std::uint64_t, kTierCount>;

[[noreturn]] void refuse(Tier tier, std::uint64_t needed, std::uint64_t left,
                         const std::string& why) {
  const std::string name(tier_name(tier));
  throw Refused(why + ": " + name + " memory has " + format_bytes_exact(left) +
                    " left and this needs " + format_bytes_exact(needed) +
                    "; smallest change that fits: " + name + "_bytes larger by " +
                    format_bytes_exact(needed - left),
                tier, needed, left);
}

// Gives every part its offset in the tier that is chosen for it, and adds up.
void lay_out(const std::vector<PagedUnit>& units, PagerPlan& plan) {
  std::uint64_t pinned = 0, storage = 0, largest_bytes = 0;
  bool stores_weights = false;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    std::uint64_t staged = 0;
    for (const PagedPart part : kPagedParts) {
      PartPlace& place = plan.places[unit][static_cast<std::size_t>(part)];
      const std::uint64_t bytes = units[unit].bytes_of(part);
      if (place.tier == Tier::kPinned) {
        place.offset_bytes = pinned;
        pinned += round_up(bytes, kTensorAlignmentBytes);
        continue;
      }
      place.offset_bytes = storage;
      place.staged_bytes = staged;
      storage += round_up(bytes, kPagedBlockBytes);
      staged += round_up(bytes, kPinnedPageBytes);
      if (part == PagedPart::kWeight && bytes > 0) stores_weights = true;
    }
    largest_bytes = std::max(largest_bytes, staged);
  }
  plan.staging_offset_bytes = round_up(pinned, kPinnedPageBytes);
  plan.staging_buffer_bytes = largest_bytes;
  plan.pieces_offset_bytes = plan.staging_offset_bytes + kStagingBuffers * largest_bytes;
  plan.pinned_bytes =
      plan.pieces_offset_bytes + (stores_weights ? kPageInPieces * kPageInPieceBytes : 0);
  plan.storage_bytes = storage;
}

void choose_tiers(const std::vector<PagedUnit>& units, const PagerOptions& options,
                  const Budgets& budgets, PagerPlan& plan) {
  const std::array<StatePlace, kPagedPartCount> wanted{options.weights, options.state};
  plan.places.resize(units.size());
  for (auto& places : plan.places) {
    for (const PagedPart part : kPagedParts) {
      const auto at = static_cast<std::size_t>(part);
      places[at].tier = wanted[at] == StatePlace::kStorage ? Tier::kStorage : Tier::kPinned;
    }
  }
  lay_out(units, plan);
  const bool has_storage = budgets[kStorage] > 0;
  for (const PagedPart part : {PagedPart::kState, PagedPart::kWeight}) {
    const auto at = static_cast<std::size_t>(part);
    if (wanted[at] != StatePlace::kAuto || !has_storage) continue;
    for (std::size_t left = units.size(); left > 0 && plan.pinned_bytes > budgets[kPinned];
         --left) {
      if (units[left - 1].part_bytes[at] == 0) continue;
      plan.places[left - 1][at].tier = Tier::kStorage;
      lay_out(units, plan);
    }
  }
  if (plan.pinned_bytes > budgets[kPinned]) {
    refuse(Tier::kPinned, plan.pinned_bytes, budgets[kPinned],
           "the homes of weights and state do not fit");
  }
  if (plan.storage_bytes > budgets[kStorage]) {
    refuse(Tier::kStorage, plan.storage_bytes, budgets[kStorage],
           "weights and state on storage do not fit");
  }
}

void choose_slots(const std::vector<PagedUnit>& units, const PagerOptions& options,
                  std::uint64_t slot_bytes, std::uint64_t budget_bytes, PagerPlan& plan) {
  std::uint64_t all = 0, largest = 0;
  std::string name;
  bool has_state = false;  // a pager may have state alone
  for (const PagedUnit& unit : units) {
    has_state = has_state || unit.bytes_of(PagedPart::kState) > 0;
    const std::uint64_t slots = ceil_div(unit.bytes_of(PagedPart::kWeight), slot_bytes);
    all += slots;
    if (slots > largest) {
      largest = slots;
      name = unit.name;
    }
  }
  if (all == 0 && !has_state) throw InputError("no unit has a tensor: there is nothing to move");
  const std::uint64_t budget =
      options.window_bytes == 0 ? budget_bytes : std::min(budget_bytes, options.window_bytes);
  if (largest * slot_bytes > budget) {
    refuse(Tier::kDevice, largest * slot_bytes, budget,
           "the weights of unit '" + shown(name) + "' do not fit on the device");
  }
  plan.slot_bytes = slot_bytes;
  plan.slot_count = static_cast<std::uint32_t>(std::min(all, budget / slot_bytes));
}

}  // namespace

PagerPlan plan_pager(const std::vector<PagedUnit>& units, const PagerOptions& options,
                     std::uint64_t slot_bytes, const Budgets& budgets_bytes) {
  PagerPlan plan;
  choose_slots(units, options, slot_bytes, budgets_bytes[kDevice], plan);
  choose_tiers(units, options, budgets_bytes, plan);
  return plan;
}

}  // namespace sluice::host
