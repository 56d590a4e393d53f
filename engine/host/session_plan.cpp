// The search has two unknowns: how many units have their state on storage, and how large the pieces
// are that an update stages. Fewer units on storage move fewer bytes; larger pieces make larger
// transfers, and take more pinned memory. So the largest pieces come first, and for each size the
// fewest units that fit, found by bisection: state on storage frees pinned memory. Smaller pieces
// leave more of it to state, so they may fit where the storage has too little room.
#include "engine/host/session_plan.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/units.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/host_update.hpp"

namespace sluice::host {
namespace {

using Bytes = std::array<std::uint64_t, kTierCount>;

constexpr auto kPinned = static_cast<std::size_t>(Tier::kPinned);
constexpr auto kStorage = static_cast<std::size_t>(Tier::kStorage);

// From 1 MiB of fp32 down to four tagged blocks of it.
constexpr std::array<std::uint64_t, 3> kPieceElems{262144, 65536, 16384};

class PlanSearch {
 public:
  PlanSearch(const schedule::StepModel& model, const Bytes& budgets, std::uint64_t log_bytes)
      : model_(model), budgets_(budgets), log_bytes_(log_bytes) {}

  // The last `stored` units have their state on storage: a step's first updates then find theirs in
  // memory, while the first reads are on their way.
  SessionPlan plan(std::size_t stored, std::uint64_t piece_elems) const {
    const std::size_t units = model_.units.size();
    SessionPlan plan;
    plan.options.piece_elems = piece_elems;
    plan.options.placement.weight.assign(units, Tier::kPinned);
    plan.options.placement.gradient.assign(units, Tier::kPinned);
    plan.options.placement.optimizer.assign(units, Tier::kPinned);
    std::fill_n(plan.options.placement.optimizer.rbegin(), stored, Tier::kStorage);
    plan.options.durable = log_bytes_ > 0;
    plan.update = schedule::compile_host_update(model_, plan.options);
    std::vector<const schedule::Schedule*> schedules{&plan.update};
    if (plan.options.durable) {
      plan.save = schedule::compile_host_save(model_, plan.options);
      schedules.push_back(&plan.save);
    }
    plan.need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
    plan.need.fixed.log_bytes = log_bytes_;
    return plan;
  }

  bool fits(const SessionPlan& plan, std::size_t tier) const {
    return plan.need.peak_bytes()[tier] <= budgets_[tier];
  }

  // The fewest units on storage, from `least` up, that leave enough pinned memory; nothing if not
  // even all of them do.
  std::optional<SessionPlan> search(std::size_t least, std::uint64_t piece_elems) const {
    std::size_t most = model_.units.size();
    SessionPlan best = plan(most, piece_elems);
    if (!fits(best, kPinned)) return std::nullopt;
    while (least < most) {
      const std::size_t middle = least + (most - least) / 2;
      SessionPlan tried = plan(middle, piece_elems);
      if (!fits(tried, kPinned)) {
        least = middle + 1;
        continue;
      }
      most = middle;
      best = std::move(tried);
    }
    return best;
  }

  [[noreturn]] void refuse(const SessionPlan& plan, std::size_t tier, const char* state) const {
    const std::uint64_t needed = plan.need.peak_bytes()[tier];
    throw Refused("the session does not fit with " + std::string(state) + ": " +
                      std::string(tier_name(static_cast<Tier>(tier))) + " memory has " +
                      format_bytes_exact(budgets_[tier]) + " left and the session needs " +
                      format_bytes_exact(needed) + "; smallest change that fits: " +
                      std::string(tier_name(static_cast<Tier>(tier))) + "_bytes larger by " +
                      format_bytes_exact(needed - budgets_[tier]),
                  static_cast<Tier>(tier), needed, budgets_[tier]);
  }

 private:
  const schedule::StepModel& model_;
  const Bytes& budgets_;
  const std::uint64_t log_bytes_;
};

SessionPlan choose(const PlanSearch& search, std::size_t units, StatePlace place,
                   bool has_storage) {
  if (place != StatePlace::kStorage) {
    SessionPlan pinned = search.plan(0, kPieceElems.front());
    const bool fits_pinned = search.fits(pinned, kPinned);
    if (fits_pinned && search.fits(pinned, kStorage)) return pinned;
    if (place == StatePlace::kPinned || !has_storage) {
      search.refuse(pinned, fits_pinned ? kStorage : kPinned,
                    "its optimizer state in pinned memory");
    }
  }
  const std::size_t least = place == StatePlace::kStorage ? units : 1;
  std::optional<SessionPlan> nearest;  // enough pinned memory, and the least storage
  for (const std::uint64_t piece_elems : kPieceElems) {
    std::optional<SessionPlan> found = search.search(least, piece_elems);
    if (!found) continue;
    if (search.fits(*found, kStorage)) return std::move(*found);
    if (!nearest || found->need.storage_bytes < nearest->need.storage_bytes) {
      nearest = std::move(found);
    }
  }
  if (nearest) search.refuse(*nearest, kStorage, "optimizer state on storage");
  search.refuse(search.plan(units, kPieceElems.back()), kPinned,
                "all of its optimizer state on storage");
}

}  // namespace

schedule::StepModel make_state_model(const model::ParameterSpace& space,
                                     const std::vector<std::string>& names,
                                     const model::ParameterTable& table,
                                     const kernels::StateKernels& kernels) {
  schedule::StepModel model;
  for (std::size_t unit = 0; unit < space.unit_count(); ++unit) {
    const model::UnitLayout& layout = space.layout(unit);
    const kernels::OptimizerOptions& options = table.options(unit);
    schedule::UnitFootprint footprint;
    footprint.name = names[unit];
    footprint.elems = layout.elems();
    footprint.norm_blocks_before = layout.norm_blocks_before();
    footprint.tensor_state_elems = table.tensor_state_elems(unit);
    footprint.update_workspace_bytes =
        kernels.update_workspace_bytes(options, table.segments(unit, 0, layout.elems()));
    model.units.push_back(std::move(footprint));
    model.unit_optimizers.push_back(options);
  }
  return model;
}

SessionPlan plan_session(const schedule::StepModel& model, const Bytes& budgets_bytes,
                         StatePlace place, std::uint64_t log_bytes) {
  SessionPlan plan = choose(PlanSearch(model, budgets_bytes, log_bytes), model.units.size(), place,
                            budgets_bytes[kStorage] > 0);
  for (const schedule::Schedule* schedule : {&plan.update, &plan.save}) {
    if (schedule->instructions.empty()) continue;
    const std::vector<std::string> problems = schedule::validate(*schedule, budgets_bytes);
    SLUICE_CHECK_MSG(problems.empty(), problems.front());
  }
  return plan;
}

}  // namespace sluice::host
