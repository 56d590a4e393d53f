// Needs cost a compiled schedule, and exact ones a long one, so a group is compiled only if the answer
// hangs on it. A group fits if its coarse need leaves ample room. Next come groups whose coarse
// need leaves much room, since their exact need is likely to fit.
//
// A refusal asks for the least need by several measures. By each of them a group's need is no smaller
// than its coarse one, and that no smaller than its floor. So the group with the least bound so far
// gets its next closer bound, until no group's bound could change the refusal.
#include "engine/planner/trial/feasibility.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/choice/unit_need.hpp"

namespace sluice::planner {
namespace {

// Exact needs exceed coarse ones by a few percent at most; this is much room.
constexpr std::uint64_t kRoomyDivisor = 4;
// And this is so much that the exact need is not asked for: room for half as many bytes again above
// the floor, which is exact, and for a little of all.
constexpr std::uint64_t kAmpleMoreDivisor = 2;
constexpr std::uint64_t kAmpleDivisor = 64;
constexpr std::size_t kMostAmple = 2;  // groups that are looked at for it

double share_of(std::uint64_t bytes, std::uint64_t budget) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(budget, 1));
}

}  // namespace

Feasibility::Feasibility(const schedule::StepModel& model, const TierBytes& budgets, Trials& trials,
                         std::vector<CandidateGroup> groups)
    : model_(model),
      budgets_(budgets),
      trials_(trials),
      groups_(std::move(groups)),
      needs_(groups_.size()) {
  const std::uint64_t unit_bytes =
      largest_unit_need(model, groups_.front().front().chunk_bytes).device_bytes;
  for (const CandidateGroup& group : groups_) {
    TierBytes floor = home_bytes(model, group.back());
    floor.front() = std::max(resting_bytes(model, group.back()).front(), unit_bytes);
    floors_.push_back(floor);
  }
}

const TierBytes& Feasibility::coarse_need(std::size_t group) {
  return trials_.coarse_need(groups_[group].back());
}

bool Feasibility::may_fit(std::size_t group) {
  return planner::fits(floors_[group], budgets_) &&
         trials_.coarse_fits(groups_[group].back(), budgets_);
}

bool Feasibility::fits_amply(std::size_t group) {
  if (trials_.ranks_differ() || !may_fit(group)) return false;
  TierBytes enough = coarse_need(group);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    const std::uint64_t moving = enough[tier] - std::min(enough[tier], floors_[group][tier]);
    enough[tier] += moving / kAmpleMoreDivisor + enough[tier] / kAmpleDivisor;
  }
  return planner::fits(enough, budgets_);
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

// The groups that take the least share of any budget by their floors.
std::vector<std::size_t> Feasibility::roomiest() const {
  std::vector<std::size_t> order(groups_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto share = [&](std::size_t group) {
    double most = 0;
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      most = std::max(most, share_of(floors_[group][tier], budgets_[tier]));
    }
    return most;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return share(a) < share(b); });
  order.resize(std::min(order.size(), kMostAmple));
  return order;
}

bool Feasibility::fits() {
  for (const std::size_t group : roomiest()) {
    if (!fits_amply(group)) continue;
    fitting_ = group;
    return true;
  }
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

// A long step's exact need takes as long as the rest of its plan, and coarse needs are packed as exact
// ones are, but for 1/256 where these have many pieces.
bool Feasibility::long_step_fits(std::size_t group, const TierBytes& budgets) {
  return step_size(model_, groups_[group].back()) > kSmallStepInstructions &&
         planner::fits(floors_[group], budgets) && planner::fits(coarse_need(group), budgets);
}

// A refusal of budgets as large as `need` asks the same question.
std::optional<TierBytes> Feasibility::nearest_need(const TierBytes& need) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (long_step_fits(group, need)) return std::nullopt;
  }
  const bool known = std::any_of(needs_.begin(), needs_.end(), [&](const auto& of_group) {
    return of_group && planner::fits(*of_group, need);
  });
  if (known) return std::nullopt;
  if (step_size(model_, frugal()) > kSmallStepInstructions) return nearest_coarse_need(need);
  std::vector<CandidateGroup> possible;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (planner::fits(floors_[group], budgets_)) possible.push_back(groups_[group]);
  }
  Feasibility tight(model_, need, trials_, std::move(possible));
  if (tight.fits()) return std::nullopt;
  const TierBytes nearest = tight.refusal().needed_bytes;
  return planner::fits(nearest, budgets_) ? nearest : this->need(*fitting_);
}

// Begins with the least floor, since no need is below its group's floor.
TierBytes Feasibility::nearest_coarse_need(const TierBytes& need) {
  const Refuser refuser(need);
  std::vector<std::size_t> order;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (planner::fits(floors_[group], budgets_)) order.push_back(group);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return refuser.shortfall(floors_[a]) < refuser.shortfall(floors_[b]);
  });
  std::optional<TierBytes> nearest;
  for (const std::size_t group : order) {
    if (nearest && refuser.shortfall(floors_[group]) >= refuser.shortfall(*nearest)) break;
    const bool is_long = step_size(model_, groups_[group].back()) > kSmallStepInstructions;
    const TierBytes& bytes = is_long && !needs_[group] ? coarse_need(group) : this->need(group);
    if (!planner::fits(bytes, budgets_)) continue;
    if (!nearest || refuser.shortfall(bytes) < refuser.shortfall(*nearest)) nearest = bytes;
  }
  return nearest ? *nearest : this->need(*fitting_);
}

Refusal Feasibility::refusal() {
  Refuser refuser(budgets_);
  struct Open {
    std::size_t group = 0;
    TierBytes bound{};
    bool is_coarse = false;  // a coarse need, not a floor
  };
  std::vector<Open> open;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (needs_[group]) {
      refuser.consider(*needs_[group]);
    } else {
      TierBytes bound = trials_.least_need(groups_[group].back());
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        bound[tier] = std::max(bound[tier], floors_[group][tier]);
      }
      open.push_back({group, bound, false});
    }
  }
  while (true) {
    std::erase_if(open, [&](const Open& of) { return !refuser.could_matter(of.bound); });
    if (open.empty()) return refuser.refusal();
    const auto least =
        std::min_element(open.begin(), open.end(), [&](const Open& a, const Open& b) {
          return refuser.shortfall(a.bound) < refuser.shortfall(b.bound);
        });
    if (!least->is_coarse) {
      least->bound = coarse_need(least->group);
      least->is_coarse = true;
      continue;
    }
    refuser.consider(need(least->group));
    open.erase(least);
  }
}

}  // namespace sluice::planner
