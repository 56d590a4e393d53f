// What would have let a failed request succeed: candidate changes, each tried by running the
// recorded trace, with the request at its end, through the allocator again. No change is called a
// fix that the simulation refutes.
//
// Takes seconds for long records, so it is done on demand, after the error was thrown and with no
// lock held. Thread-safe: a pure function of its arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/caching/oom_report.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::allocator {

// From the least intrusive on: settings of the allocator, then of the run, then what is kept.
enum class OomChange : std::uint8_t {
  kGrowthSlack,    // CachingAllocatorOptions::growth_slack = 0
  kRemapBudget,    // remap_budget_pages without end
  kThreadCache,    // thread_cache_bytes = 0
  kReleaseCached,  // release_cached() at each step (torch.cuda.empty_cache)
  kMovable,        // streams that are not movable added as movable
  kPlanning,       // a PlanningAllocator in front, or none where there is one
  kLargerCap,      // where the device has the room
  kFreeSite,       // blocks of a site are freed or offloaded before the request
  kFreeCategory,   // blocks of a category
  kFreeAny,        // blocks of whatever site
  kLargerDevice,   // or less held by others there
};

struct OomFix {
  OomChange change = OomChange::kGrowthSlack;
  std::string text;     // what to do, as one clause
  std::string setting;  // whose value is to change; "": no setting
  std::string value;
  std::uint64_t bytes = 0;  // more to be had, or less to be held; 0: neither
  bool verified = false;    // the trace completes with it
  // Where verified: no smaller number of bytes (in pages) or of blocks (oldest first) was found to
  // do. False where the bound on operations ended the search.
  bool is_least = false;
  std::uint64_t peak_reserved_bytes = 0;  // where verified: of the simulation
};

struct OomFixes {
  // Verified ones first, by change and then by bytes; behind them those that were refuted.
  std::vector<OomFix> tried;
  // The same cap and settings failed in the simulation too: only then does it prove anything.
  bool reproduced = false;
  std::string note;  // why there are none, or not all; else ""
  std::uint64_t operation_count = 0;

  std::vector<OomFix> verified() const;
};

struct OomFixOptions {
  // Operations to be simulated, all runs together: about 1 us each. A run that has begun is
  // finished, so it may be passed by the length of the trace.
  std::uint64_t max_operations = 20'000'000;
  std::size_t max_sites = 4;  // the largest
};

// From the report's own record; without one, only a note that says so. Times that the caller gave
// cached memory back are not in the simulation: a page that moves is recorded as one given back.
OomFixes find_fixes(const OomReport& report, const OomFixOptions& options = {});
// The trace ends with the request that failed.
OomFixes find_fixes(const OomReport& report, const record::MemoryTrace& trace,
                    const OomFixOptions& options = {});

}  // namespace sluice::allocator
