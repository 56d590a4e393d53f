// A configuration is refused when the most frugal candidate of every placement exceeds a budget.
// The suggestions come from the same needs. For each tier, the least budget with which some
// candidate fits is a minimum over the candidates that fit the other tiers. Where no single budget
// is enough, the suggestion names all budgets of the candidate that lacks the fewest bytes.
#include "engine/planner/trial/refusal.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/trial/budget_step.hpp"

namespace sluice::planner {
namespace {

constexpr std::array<const char*, kTierCount> kBudgetKeys{"memory.device", "memory.pinned",
                                                          "memory.storage"};

// A budget as it was given; free space, which is an odd number of bytes, to three digits.
std::string available_text(std::uint64_t bytes) {
  return bytes % kMiB == 0 ? format_bytes_exact(bytes) : format_bytes(bytes);
}

}  // namespace

Refusal Refuser::refusal() const {
  Refusal refusal;
  refusal.available_bytes = budgets_;
  refusal.needed_bytes = nearest();
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (const auto least = least_budget(tier)) {
      refusal.suggestions.push_back({{kBudgetKeys[tier], *least}});
    }
  }
  if (refusal.suggestions.empty()) {
    Suggestion joint;
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      if (refusal.needed_bytes[tier] > budgets_[tier]) {
        joint.emplace_back(kBudgetKeys[tier], suggested_budget(refusal.needed_bytes[tier]));
      }
    }
    refusal.suggestions.push_back(std::move(joint));
  }
  return refusal;
}

std::optional<std::uint64_t> Refuser::least_budget(std::size_t tier) const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const TierBytes& needed : needs_) {
    if (fits_others(needed, tier)) least = std::min(least, needed[tier]);
  }
  if (least == std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
  return suggested_budget(least);
}

bool Refuser::fits_others(const TierBytes& needed, std::size_t tier) const {
  TierBytes others = budgets_;
  others[tier] = std::numeric_limits<std::uint64_t>::max();
  return fits(needed, others);
}

bool Refuser::could_matter(const TierBytes& needed) const {
  if (needs_.empty() || shortfall(needed) < shortfall(nearest())) return true;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (!fits_others(needed, tier)) continue;
    const std::optional<std::uint64_t> least = least_budget(tier);
    if (!least || suggested_budget(needed[tier]) < *least) return true;
  }
  return false;
}

std::uint64_t Refuser::shortfall(const TierBytes& needed) const {
  std::uint64_t bytes = 0;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (needed[tier] > budgets_[tier]) bytes += suggested_budget(needed[tier]) - budgets_[tier];
  }
  return bytes;
}

TierBytes Refuser::nearest() const {
  SLUICE_CHECK(!needs_.empty());
  return *std::min_element(
      needs_.begin(), needs_.end(),
      [&](const TierBytes& a, const TierBytes& b) { return shortfall(a) < shortfall(b); });
}

std::string Refusal::sentence() const {
  std::string text = "does not fit:";
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (needed_bytes[tier] <= available_bytes[tier]) continue;
    text += " " + std::string(kBudgetKeys[tier]) + " needs " +
            format_bytes_exact(suggested_budget(needed_bytes[tier]));
    const bool has_obstacle =
        static_cast<Tier>(tier) == Tier::kStorage && !storage_obstacle.empty();
    text += has_obstacle ? ", but " + storage_obstacle + ";"
                         : " and has " + available_text(available_bytes[tier]) + ";";
  }
  if (too_large) {
    text += " the largest unit, " + too_large->unit + ", takes " +
            format_bytes(too_large->device_bytes) +
            " of memory.device by itself, whatever is recomputed or spilled;";
  }
  if (suggestions.empty()) {
    text += " no memory budget that this machine has room for is enough";
    if (other_changes.empty()) {
      text += "; a smaller model or batch, or memory.storage_paths with more room, might";
    }
  } else {
    text += " smallest change that fits:";
    for (std::size_t i = 0; i < suggestions.size(); ++i) {
      if (i > 0) text += " or";
      for (const auto& [key, bytes] : suggestions[i]) {
        text += " --set " + key + "=" + format_bytes_exact(bytes);
      }
    }
  }
  for (const bool results : {false, true}) {
    std::string changes;
    for (const OtherChange& change : other_changes) {
      if (change.changes_results != results) continue;
      if (!changes.empty()) changes += " or";
      for (const auto& [key, value] : change.settings) {
        // Ranks below stage 3 hold what they could share, which a reader may not know.
        const bool shards = key == "parallel.zero";
        changes += shards ? " use parallel.zero = " + value + ", --set " : " --set ";
        changes += key + "=" + value;
      }
    }
    if (changes.empty()) continue;
    text += results ? "; or, if you allow other results:" : "; or, with these budgets:";
    text += changes;
  }
  return text;
}

}  // namespace sluice::planner
