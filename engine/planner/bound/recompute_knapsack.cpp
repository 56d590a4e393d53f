// Branch and bound over linear programs. A variable is the share of a class that takes an option.
// Without the condition that units are whole, the program is small, and its minimum bounds every
// choice below it. Equal units make the tree shallow: only as many variables are broken as there
// are binding rows. The search goes depth first and rounds each node's solution, so a good choice
// is known early.
#include "engine/planner/bound/recompute_knapsack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "engine/planner/bound/linear_program.hpp"

namespace sluice::planner {
namespace {

constexpr double kWhole = 1e-6;  // the distance from a whole number of units that counts as none

// A condition of a branch: at most or at least so many units of a class take an option.
struct Branch {
  std::size_t unit_class = 0;
  std::size_t option = 0;
  bool at_most = true;
  std::int64_t count = 0;
};

class KnapsackSearch {
 public:
  explicit KnapsackSearch(const Knapsack& knapsack) : knapsack_(knapsack) {
    for (const Knapsack::UnitClass& of : knapsack.classes) {
      first_column_.push_back(columns_);
      columns_ += of.options.size();
    }
    for (const Knapsack::Resource& resource : knapsack.resources) {
      phases_ = std::max(phases_, resource.phase + 1);
      second_ = std::max(second_, resource.fixed_s);
    }
    for (const Knapsack::UnitClass& of : knapsack.classes) {
      for (const Knapsack::Option& option : of.options) {
        for (const double seconds : option.seconds) second_ = std::max(second_, seconds);
      }
    }
    if (second_ <= 0) second_ = 1;
  }

  std::optional<Knapsack::Choice> best(double gap, std::size_t most_nodes) {
    std::vector<std::vector<Branch>> open{{}};
    for (std::size_t nodes = 0; !open.empty() && nodes < most_nodes; ++nodes) {
      const std::vector<Branch> node = std::move(open.back());
      open.pop_back();
      const auto relaxed = program(node).minimum();
      if (!relaxed) continue;
      if (best_ && relaxed->cost * second_ >= best_->seconds * (1 - gap) - 1e-12) continue;
      take_rounded(relaxed->x);
      const std::optional<Branch> broken = most_broken(relaxed->x);
      if (!broken) {
        take(whole_counts(relaxed->x));
        continue;
      }
      // The side that is looked at first is pushed last: more units with the option.
      open.push_back(node);
      open.back().push_back(*broken);
      open.push_back(node);
      open.back().push_back({broken->unit_class, broken->option, false, broken->count + 1});
    }
    return std::move(best_);
  }

 private:
  // Bytes count in budgets and seconds in the largest amount, so that no coefficient is far from
  // one.
  LinearProgram program(const std::vector<Branch>& branches) const {
    std::vector<double> costs(columns_ + phases_);
    for (std::size_t phase = 0; phase < phases_; ++phase) costs[columns_ + phase] = 1;
    std::vector<std::vector<double>> bytes(kTierCount, std::vector<double>(columns_));
    std::vector<std::vector<double>> work(knapsack_.resources.size(),
                                          std::vector<double>(columns_ + phases_));
    std::vector<std::vector<double>> shares(knapsack_.classes.size(),
                                            std::vector<double>(columns_));
    for (std::size_t i = 0; i < knapsack_.classes.size(); ++i) {
      const Knapsack::UnitClass& of = knapsack_.classes[i];
      const auto count = static_cast<double>(of.count);
      for (std::size_t option = 0; option < of.options.size(); ++option) {
        const std::size_t column = first_column_[i] + option;
        shares[i][column] = 1;
        for (std::size_t tier = 0; tier < kTierCount; ++tier) {
          bytes[tier][column] = count * static_cast<double>(of.options[option].bytes[tier]) /
                                static_cast<double>(std::max<std::uint64_t>(budget(tier), 1));
        }
        for (std::size_t k = 0; k < work.size(); ++k) {
          work[k][column] = count * of.options[option].seconds[k] / second_;
          costs[column] += knapsack_.work_weight * work[k][column];
        }
      }
    }
    LinearProgram program(std::move(costs));
    for (const std::vector<double>& all : shares) program.equals(all, 1);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      const auto holds = [](double of) { return of > 0; };
      if (!std::any_of(bytes[tier].begin(), bytes[tier].end(), holds)) continue;
      program.at_most(std::move(bytes[tier]), budget(tier) > 0 ? 1 : 0);
    }
    for (std::size_t k = 0; k < work.size(); ++k) {
      work[k][columns_ + knapsack_.resources[k].phase] = -1;
      program.at_most(std::move(work[k]), -knapsack_.resources[k].fixed_s / second_);
    }
    for (const Branch& branch : branches) {
      std::vector<double> row(columns_);
      row[first_column_[branch.unit_class] + branch.option] = 1;
      const double limit = static_cast<double>(branch.count) /
                           static_cast<double>(knapsack_.classes[branch.unit_class].count);
      if (branch.at_most) {
        program.at_most(std::move(row), limit);
      } else {
        program.at_least(std::move(row), limit);
      }
    }
    return program;
  }
  std::uint64_t budget(std::size_t tier) const { return knapsack_.budgets[tier]; }

  double units_of(const std::vector<double>& x, std::size_t unit_class, std::size_t option) const {
    return x[first_column_[unit_class] + option] *
           static_cast<double>(knapsack_.classes[unit_class].count);
  }

  // The option farthest from a whole number of units, with its number rounded down.
  std::optional<Branch> most_broken(const std::vector<double>& x) const {
    std::optional<Branch> found;
    double farthest = kWhole;
    for (std::size_t i = 0; i < knapsack_.classes.size(); ++i) {
      for (std::size_t option = 0; option < knapsack_.classes[i].options.size(); ++option) {
        const double units = units_of(x, i, option);
        const double distance = std::abs(units - std::round(units));
        if (distance <= farthest) continue;
        farthest = distance;
        found = Branch{i, option, true, static_cast<std::int64_t>(std::floor(units))};
      }
    }
    return found;
  }

  Knapsack::Counts whole_counts(const std::vector<double>& x) const {
    Knapsack::Counts counts;
    for (std::size_t i = 0; i < knapsack_.classes.size(); ++i) {
      counts.emplace_back();
      for (std::size_t option = 0; option < knapsack_.classes[i].options.size(); ++option) {
        counts.back().push_back(std::llround(units_of(x, i, option)));
      }
    }
    return counts;
  }

  // Whole units first; the others of a class all take the one of its options that is best.
  void take_rounded(const std::vector<double>& x) {
    Knapsack::Counts counts = whole_counts(x);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::int64_t left = knapsack_.classes[i].count;
      for (std::size_t option = 0; option < counts[i].size(); ++option) {
        counts[i][option] = static_cast<std::int64_t>(std::floor(units_of(x, i, option) + kWhole));
        left -= counts[i][option];
      }
      if (left == 0) continue;
      std::optional<std::size_t> least;
      double least_s = std::numeric_limits<double>::infinity();
      for (std::size_t option = 0; option < counts[i].size(); ++option) {
        counts[i][option] += left;
        const double seconds = knapsack_.seconds_of(counts);
        if (seconds < least_s && knapsack_.fits(counts)) {
          least = option;
          least_s = seconds;
        }
        counts[i][option] -= left;
      }
      if (!least) return;
      counts[i][*least] += left;
    }
    take(counts);
  }

  void take(const Knapsack::Counts& counts) {
    if (!knapsack_.fits(counts)) return;
    const double seconds = knapsack_.seconds_of(counts);
    if (!best_ || seconds < best_->seconds) best_ = Knapsack::Choice{seconds, counts};
  }

  const Knapsack& knapsack_;
  std::vector<std::size_t> first_column_;  // by class
  std::size_t columns_ = 0;
  std::size_t phases_ = 0;
  double second_ = 0;  // the largest amount of work
  std::optional<Knapsack::Choice> best_;
};

}  // namespace

std::optional<Knapsack::Choice> Knapsack::solve(double gap, std::size_t most_nodes) const {
  for (const UnitClass& of : classes) SLUICE_CHECK(of.count > 0 && !of.options.empty());
  return KnapsackSearch(*this).best(gap, most_nodes);
}

bool Knapsack::fits(const Counts& counts) const {
  TierBytes bytes{};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    std::int64_t units = 0;
    for (std::size_t option = 0; option < counts[i].size(); ++option) {
      if (counts[i][option] < 0) return false;
      units += counts[i][option];
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        bytes[tier] +=
            static_cast<std::uint64_t>(counts[i][option]) * classes[i].options[option].bytes[tier];
      }
    }
    if (units != classes[i].count) return false;
  }
  return planner::fits(bytes, budgets);
}

double Knapsack::seconds_of(const Counts& counts) const {
  std::vector<double> phases;
  double work_s = 0;
  for (std::size_t k = 0; k < resources.size(); ++k) {
    double seconds = resources[k].fixed_s;
    for (std::size_t i = 0; i < classes.size(); ++i) {
      for (std::size_t option = 0; option < counts[i].size(); ++option) {
        seconds += static_cast<double>(counts[i][option]) * classes[i].options[option].seconds[k];
      }
    }
    work_s += seconds - resources[k].fixed_s;
    if (phases.size() <= resources[k].phase) phases.resize(resources[k].phase + 1);
    phases[resources[k].phase] = std::max(phases[resources[k].phase], seconds);
  }
  double sum = work_weight * work_s;
  for (const double phase : phases) sum += phase;
  return sum;
}

}  // namespace sluice::planner
