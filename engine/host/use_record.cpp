#include "engine/host/use_record.hpp"

#include <algorithm>
#include <utility>

namespace sluice::host {
namespace {

// Longer cycles are not recorded: a program may never begin a second one.
constexpr std::size_t kMostUses = std::size_t{1} << 20;

bool begins_with(const std::vector<std::uint32_t>& whole, const std::vector<std::uint32_t>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

void UseRecord::begin_cycle() {
  at_ = 0;
  if (current_.empty()) return;
  if (!is_overlong_ && current_ == previous_ && !begins_with(plan_, current_)) adopt(current_);
  previous_ = std::move(current_);
  if (is_overlong_) previous_.clear();
  current_.clear();
  is_overlong_ = false;
}

void UseRecord::adopt(const std::vector<std::uint32_t>& cycle) {
  plan_ = cycle;
  positions_.clear();
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    if (positions_.size() <= plan_[i]) positions_.resize(plan_[i] + 1);
    positions_[plan_[i]].push_back(i);
  }
  ++plans_;
}

void UseRecord::note_use(std::uint32_t unit) {
  if (current_.size() < kMostUses) {
    current_.push_back(unit);
  } else {
    is_overlong_ = true;
  }
  if (plan_.empty()) return;
  const std::uint64_t distance = next_use(unit);
  if (distance > 0) ++deviations_;
  if (distance != kNever) at_ += static_cast<std::size_t>(distance) + 1;
}

std::uint64_t UseRecord::next_use(std::uint32_t unit) const {
  if (unit >= positions_.size()) return kNever;
  const std::vector<std::size_t>& all = positions_[unit];
  const auto found = std::lower_bound(all.begin(), all.end(), at_);
  return found == all.end() ? kNever : *found - at_;
}

std::span<const std::uint32_t> UseRecord::upcoming() const {
  return std::span<const std::uint32_t>(plan_).subspan(at_);
}

}  // namespace sluice::host
