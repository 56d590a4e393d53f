// The search for changes that prevent an out of memory.
//
// First the recorded trace runs under the cap and the settings that failed. If it completes, the
// simulation lacks something that the real run had, and the search ends with a note. Otherwise each
// candidate runs the trace to its end: first the settings, which need one run each; then the
// capacity, whose least sufficient value is found by bisection over pages; then less memory held
// when the request came, by site, by category and in all. For these the oldest blocks go first, and
// bisection finds how many of them suffice. A run stops at the first request that fails, so refuted
// candidates are cheap. max_operations bounds the sum.
#include "allocator/oom/oom_fixes.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "allocator/oom/oom_simulation.hpp"
#include "allocator/record/trace_from_snapshot.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::allocator {
namespace {

constexpr std::uint64_t kLeastPlannedSteps = 3;  // two that are alike, and one that is planned

// The allocations that are held when operation `at` comes, in the order of their allocation.
std::vector<std::uint32_t> held_before(const record::MemoryTrace& trace, std::size_t at) {
  std::vector<bool> held(trace.allocations.size());
  std::vector<std::uint32_t> order;
  const auto begin = [&](std::uint32_t id) {
    held[id] = true;
    order.push_back(id);
  };
  for (std::size_t s = 0; s < trace.initial_segments.size(); ++s) {
    const std::vector<record::SnapshotBlock>& blocks = trace.initial_segments[s].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == record::BlockState::kAllocated) begin(trace.initial_ids[s][b]);
    }
  }
  for (std::size_t i = 0; i < at; ++i) {
    const auto [action, id] = trace.operations[i];
    if (action == record::TraceAction::kAlloc) begin(id);
    if (action == record::TraceAction::kFree || action == record::TraceAction::kFreePending)
      held[id] = false;
  }
  std::erase_if(order, [&](std::uint32_t id) { return !held[id]; });
  return order;
}

// Tries one candidate after the other. base_ holds the settings that failed; a candidate is a copy
// of them with one change.
class FixSearch {
 public:
  FixSearch(const OomReport& report, const record::MemoryTrace& trace, std::size_t failed_operation,
            const OomFixOptions& options)
      : report_(report),
        trace_(trace),
        options_(options),
        failed_operation_(failed_operation),
        held_(held_before(trace, failed_operation)) {
    result_.later_operation_count = trace.operations.size() - failed_operation - 1;
    // The unused part of a planned arena is in no event, so the simulated device is smaller by it.
    const std::uint64_t page_bytes = report.limits.page_bytes;
    const std::uint64_t unused_bytes = report.arena_bytes - report.arena_live_bytes;
    base_.capacity_bytes = report.may_hold_bytes -
                           std::min(report.may_hold_bytes, unused_bytes / page_bytes * page_bytes);
    base_.options = report.options;
    for (const OomStream& stream : report.streams) {
      if (!stream.movable && stream.pool == 0) base_.fixed_streams.push_back(stream.stream);
    }
  }

  OomFixes run() {
    result_.reproduced = !run_once(base_).completed;
    if (!result_.reproduced) {
      result_.note =
          "the recorded trace completes in the simulation under the same cap (the record begins "
          "late, or other processes had left less room): no change can be checked";
      return std::move(result_);
    }
    try_settings();
    try_capacity();
    try_less_held();
    if (is_spent()) {
      result_.note = "the search ended after " + std::to_string(result_.operation_count) +
                     " simulated operations: there may be smaller or other changes";
    }
    std::stable_sort(result_.tried.begin(), result_.tried.end(),
                     [](const OomFix& a, const OomFix& b) {
                       return std::tuple(!a.verified, a.change, a.bytes) <
                              std::tuple(!b.verified, b.change, b.bytes);
                     });
    return std::move(result_);
  }

 private:
  bool is_spent() const { return result_.operation_count >= options_.max_operations; }

  // Runs the whole trace once, and counts its operations against the budget.
  SimulationOutcome run_once(const SimulatedAllocator& settings) {
    SimulationOutcome outcome = simulate(trace_, settings);
    result_.operation_count += outcome.operation_count;
    return outcome;
  }

  // Tries a change that has no amount. It is the least one if it works.
  void try_once(OomFix fix, const SimulatedAllocator& settings) {
    if (is_spent()) return;
    const SimulationOutcome outcome = run_once(settings);
    fix.verified = fix.is_least = outcome.completed;
    if (outcome.completed) fix.peak_reserved_bytes = outcome.peak_reserved_bytes;
    result_.tried.push_back(std::move(fix));
  }

  // Bisects for the least number in (low, high] with which the trace completes. Precondition: it
  // completes with `high`, at a peak of high_peak_bytes, and not with `low`. Sets the fix's
  // outcome.
  std::uint64_t least(OomFix& fix, std::uint64_t low, std::uint64_t high,
                      std::uint64_t high_peak_bytes,
                      const std::function<SimulatedAllocator(std::uint64_t)>& settings) {
    fix.verified = true;
    fix.peak_reserved_bytes = high_peak_bytes;
    while (low + 1 < high && !is_spent()) {
      const std::uint64_t middle = low + (high - low) / 2;
      const SimulationOutcome outcome = run_once(settings(middle));
      if (outcome.completed) {
        high = middle;
        fix.peak_reserved_bytes = outcome.peak_reserved_bytes;
      } else {
        low = middle;
      }
    }
    fix.is_least = low + 1 == high;
    return high;
  }

  // Settings of the allocator, then planning. A setting that already has the tried value is
  // skipped.
  void try_settings() {
    SimulatedAllocator changed = base_;
    changed.options.growth_slack = 0.0;
    if (base_.options.growth_slack > 0.0) {
      try_once({.change = OomChange::kGrowthSlack,
                .text = "move pages before growing",
                .setting = "growth_slack",
                .value = "0"},
               changed);
    }
    changed = base_;
    changed.options.remap_budget_pages = UINT64_MAX;
    if (base_.options.remap_budget_pages != UINT64_MAX) {
      try_once({.change = OomChange::kRemapBudget,
                .text = "move any number of pages in a step",
                .setting = "remap_budget_pages",
                .value = "no limit"},
               changed);
    }
    changed = base_;
    changed.options.thread_cache_bytes = 0;
    if (base_.options.thread_cache_bytes > 0) {
      try_once({.change = OomChange::kThreadCache,
                .text = "keep no small blocks in caches of threads",
                .setting = "thread_cache_bytes",
                .value = "0"},
               changed);
    }
    const auto steps = static_cast<std::uint64_t>(
        std::count_if(trace_.operations.begin(), trace_.operations.end(),
                      [](const auto& one) { return one.action == record::TraceAction::kStep; }));
    changed = base_;
    changed.releases_each_step = true;
    if (steps > 0) {
      try_once({.change = OomChange::kReleaseCached,
                .text = "give cached memory back at each step",
                .setting = "",
                .value = ""},
               changed);
    }
    try_movable();
    changed = base_;
    if (report_.arena_bytes > 0) {
      changed.capacity_bytes = report_.may_hold_bytes;
      try_once({.change = OomChange::kPlanning,
                .text = "do not plan the step (CachingAllocator alone)",
                .setting = "",
                .value = ""},
               changed);
    } else if (steps >= kLeastPlannedSteps) {
      changed.plans = true;
      try_once({.change = OomChange::kPlanning,
                .text = "plan the step (PlanningAllocator)",
                .setting = "",
                .value = ""},
               changed);
    }
  }

  // All streams that are not movable are made movable together. Streams of private pools are left
  // out: the pages of a graph may not move.
  void try_movable() {
    SimulatedAllocator changed = base_;
    changed.fixed_streams.clear();
    std::string names;
    for (const OomStream& stream : report_.streams) {
      if (stream.movable || stream.pool != 0) continue;
      if (!names.empty()) names += ", ";
      names += std::to_string(stream.stream);
    }
    if (names.empty()) return;
    try_once({.change = OomChange::kMovable,
              .text = "let the pages of stream " + names + " move",
              .setting = "add_stream(movable) of stream " + names,
              .value = "true"},
             changed);
  }

  // The least capacity with which the trace completes. An unlimited run gives the upper end of the
  // bisection, because it reserves no more than it needs at its peak.
  void try_capacity() {
    if (is_spent()) return;
    const std::uint64_t page_bytes = report_.limits.page_bytes;
    SimulatedAllocator changed = base_;
    changed.capacity_bytes = UINT64_MAX;
    const SimulationOutcome unlimited = run_once(changed);
    if (!unlimited.completed) return;
    OomFix fix;
    const std::uint64_t pages =
        least(fix, base_.capacity_bytes / page_bytes, unlimited.peak_reserved_bytes / page_bytes,
              unlimited.peak_reserved_bytes, [&](std::uint64_t count) {
                changed.capacity_bytes = count * page_bytes;
                return changed;
              });
    fix.bytes = pages * page_bytes - base_.capacity_bytes;
    describe_capacity(fix);
    result_.tried.push_back(std::move(fix));
  }

  // Words the missing bytes as a change of the limit that refused: a cap, the device, or the share
  // that other processes hold. A cap is worth raising only if the device has the room.
  void describe_capacity(OomFix& fix) const {
    const OomLimits& limits = report_.limits;
    const std::string more = format_bytes(fix.bytes) + " more";
    const std::uint64_t device_room =
        limits.device_capacity_bytes -
        std::min(limits.device_capacity_bytes, limits.device_counted_bytes);
    fix.change = OomChange::kLargerDevice;
    if (report_.external_bytes > 0) {
      fix.text = "have others leave " + more + " of the device";
      return;
    }
    if (report_.limit == OomLimit::kDevice) {
      fix.text = "a device with " + more + ", or as much less held by others there";
      return;
    }
    const bool is_tier = report_.limit == OomLimit::kTierCap;
    const std::uint64_t charged_bytes =
        is_tier ? limits.tier_charged_bytes : limits.category_charged_bytes;
    const std::uint64_t value = charged_bytes + fix.bytes;
    fix.setting = is_tier ? "cap of tier device"
                          : "cap of category " + std::string(category_name(limits.category));
    fix.value = std::to_string(value);
    fix.text = "raise the " + fix.setting + " to " + format_bytes_exact(value) + " (" + more + ")";
    if (device_room >= fix.bytes) fix.change = OomChange::kLargerCap;
    const std::uint64_t tier_room =
        limits.tier_cap_bytes - std::min(limits.tier_cap_bytes, limits.tier_charged_bytes);
    if (!is_tier && tier_room < fix.bytes) fix.text += ", and that of the tier as much";
    if (device_room < fix.bytes) {
      fix.text += ", on a device that has it: this one has " + format_bytes(device_room);
    }
  }

  // Less memory held when the request came: by the largest sites, by category, and of any site.
  void try_less_held() {
    std::size_t sites = 0;
    for (const OomSite& site : report_.sites) {
      // Blocks without a name are tried by category.
      if (site.name.empty() || site.number == 0 || sites == options_.max_sites) continue;
      ++sites;
      try_freeing(OomChange::kFreeSite, "'" + site.name + "'",
                  [&](const record::TraceAllocation& allocation) {
                    return allocation.name == site.number && allocation.category == site.category;
                  });
    }
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      const auto category = static_cast<Category>(c);
      if (report_.live_by_category[c] == 0) continue;
      try_freeing(OomChange::kFreeCategory, "category " + std::string(category_name(category)),
                  [&](const record::TraceAllocation& one) { return one.category == category; });
    }
    try_freeing(OomChange::kFreeAny, "all that is live",
                [](const record::TraceAllocation&) { return true; });
  }

  // Frees the oldest of the held blocks that `is_meant` selects, as few as suffice.
  void try_freeing(OomChange change, const std::string& of,
                   const std::function<bool(const record::TraceAllocation&)>& is_meant) {
    std::vector<std::uint32_t> ids;
    for (const std::uint32_t id : held_) {
      if (is_meant(trace_.allocations[id])) ids.push_back(id);
    }
    if (ids.empty() || is_spent()) return;
    const auto settings = [&](std::uint64_t count) {
      SimulatedAllocator changed = base_;
      changed.freed_early.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
      changed.freed_at = failed_operation_;
      return changed;
    };
    OomFix fix;
    fix.change = change;
    std::uint64_t count = ids.size();
    const SimulationOutcome outcome = run_once(settings(count));
    if (outcome.completed) count = least(fix, 0, count, outcome.peak_reserved_bytes, settings);
    for (std::uint64_t i = 0; i < count; ++i) fix.bytes += trace_.allocations[ids[i]].bytes;
    const std::string which = count == ids.size() ? "all " + std::to_string(count)
                                                  : "the oldest " + std::to_string(count) + " of " +
                                                        std::to_string(ids.size());
    fix.text = "free or offload " + format_bytes(fix.bytes) + " before this point: " + which +
               " blocks of " + of;
    result_.tried.push_back(std::move(fix));
  }

  const OomReport& report_;
  const record::MemoryTrace& trace_;
  const OomFixOptions& options_;
  const std::size_t failed_operation_;
  const std::vector<std::uint32_t> held_;  // when the request came
  SimulatedAllocator base_;                // the settings under which it failed
  OomFixes result_;
};

}  // namespace

std::vector<OomFix> OomFixes::verified() const {
  std::vector<OomFix> result;
  std::copy_if(tried.begin(), tried.end(), std::back_inserter(result),
               [](const OomFix& fix) { return fix.verified; });
  return result;
}

OomFixes find_fixes(const OomReport& report, const OomFixOptions& options) {
  if (report.record == nullptr) {
    OomFixes none;
    none.note =
        "no events were recorded: with a MemoryRecorder attached to the allocator, fixes can be "
        "simulated";
    return none;
  }
  record::MemoryTrace trace = record::trace_of(*report.record, "the allocator's record", "sluice");
  // The program went on after the requests that were refused before.
  std::erase_if(trace.operations, [](const record::TraceOperation& operation) {
    return operation.action == record::TraceAction::kFlush ||
           operation.action == record::TraceAction::kRefused;
  });
  trace.operations.push_back(
      {record::TraceAction::kAlloc, static_cast<std::uint32_t>(trace.allocations.size())});
  trace.allocations.push_back({.bytes = report.requested_bytes,
                               .stream = report.stream,
                               .category = report.category,
                               .name = report.site_number});
  return find_fixes(report, trace, trace.operations.size() - 1, options);
}

OomFixes find_fixes(const OomReport& report, const record::MemoryTrace& trace,
                    std::size_t failed_operation, const OomFixOptions& options) {
  SLUICE_CHECK(failed_operation < trace.operations.size());
  return FixSearch(report, trace, failed_operation, options).run();
}

}  // namespace sluice::allocator
