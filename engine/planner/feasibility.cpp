// Exact needs are costly, so a group is compiled exactly only if the answer hangs on it. A group
// whose coarse need leaves much room comes first, since its exact need is likely to fit. A refusal
// asks for the least need by several measures. By each of them a group's need is no smaller than
// its coarse one, so only groups whose coarse need could be the least are compiled.
#include "engine/planner/feasibility.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

// Exact needs exceed coarse ones by a few percent at most; this is much room.
constexpr std::uint64_t kRoomyDivisor = 4;

}  // namespace

Feasibility::Feasibility(const schedule::StepModel& model, const TierBytes& budgets, Trials& trials,
                         std::vector<CandidateGroup> groups)
    : model_(model),
      budgets_(budgets),
      trials_(trials),
      groups_(std::move(groups)),
      needs_(groups_.size()) {}

const TierBytes& Feasibility::coarse_need(std::size_t group) {
  return trials_.coarse_need(groups_[group].back());
}

bool Feasibility::may_fit(std::size_t group) {
  return planner::fits(home_bytes(model_, groups_[group].back()), budgets_) &&
         planner::fits(coarse_need(group), budgets_);
}

bool Feasibility::fits_with_room(std::size_t group) {
  if (!may_fit(group)) return false;
  TierBytes enough = coarse_need(group);
  for (std::uint64_t& bytes : enough) bytes += bytes / kRoomyDivisor;
  return planner::fits(enough, budgets_) && planner::fits(need(group), budgets_);
}

const TierBytes& Feasibility::need(std::size_t group) {
  std::optional<TierBytes>& need = needs_[group];
  if (need) return *need;
  need = trials_.exact_need(groups_[group].back());
  const TierBytes& coarse = coarse_need(group);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    (*need)[tier] = std::max((*need)[tier], coarse[tier]);
  }
  return *need;
}

bool Feasibility::group_fits(std::size_t group) {
  return may_fit(group) && planner::fits(need(group), budgets_);
}

bool Feasibility::fits() {
  for (const auto of : {&Feasibility::fits_with_room, &Feasibility::group_fits}) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (!(this->*of)(group)) continue;
      fitting_ = group;
      return true;
    }
  }
  return false;
}

const schedule::StepOptions& Feasibility::frugal() const {
  SLUICE_CHECK(fitting_.has_value());
  return groups_[*fitting_].back();
}

Refusal Feasibility::refusal() {
  Refuser refuser(budgets_);
  std::vector<std::size_t> open(groups_.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (needs_[group]) refuser.consider(*needs_[group]);
  }
  std::erase_if(open, [&](std::size_t group) { return needs_[group].has_value(); });
  while (true) {
    const auto next = std::find_if(open.begin(), open.end(), [&](std::size_t group) {
      return refuser.could_matter(coarse_need(group));
    });
    if (next == open.end()) return refuser.refusal();
    // The least coarse need of those that matter comes first.
    std::size_t best = *next;
    for (const std::size_t group : open) {
      const TierBytes& coarse = coarse_need(group);
      if (refuser.shortfall(coarse) < refuser.shortfall(coarse_need(best)) &&
          refuser.could_matter(coarse)) {
        best = group;
      }
    }
    refuser.consider(need(best));
    std::erase(open, best);
  }
}

}  // namespace sluice::planner
