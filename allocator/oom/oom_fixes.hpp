// Finds changes that would have prevented an out of memory. Each candidate is tried by running the
// recorded trace through the allocator again, to the end of the trace. A change counts as verified
// only if the whole trace completes with it, not only the request that failed.
//
// A search takes seconds for long records. Call it on demand, after the error was thrown and with
// no lock held. Thread-safe: the functions are pure functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/caching/oom_report.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::allocator {

// Ordered from the least intrusive change to the most: settings of the allocator, settings of the
// run, then less memory held.
enum class OomChange : std::uint8_t {
  kGrowthSlack,    // CachingAllocatorOptions::growth_slack = 0
  kRemapBudget,    // remap_budget_pages without a limit
  kThreadCache,    // thread_cache_bytes = 0
  kReleaseCached,  // release_cached() at each step (torch.cuda.empty_cache)
  kMovable,        // streams that are not movable are added as movable
  kPlanning,       // a PlanningAllocator is put in front, or taken away
  kLargerCap,      // a larger cap; the device has the room for it
  kFreeSite,       // blocks of one site are freed or offloaded before the request
  kFreeCategory,   // blocks of one category
  kFreeAny,        // blocks of any site
  kLargerDevice,   // a larger device, or less held by others there
};

struct OomFix {
  OomChange change = OomChange::kGrowthSlack;
  std::string text;     // the change, as one clause
  std::string setting;  // the setting to change; "" for none
  std::string value;
  std::uint64_t bytes = 0;  // memory to add, or to hold less; 0 for neither
  bool verified = false;    // the whole trace completes with it
  // Verified fixes only: no smaller number of bytes (in pages) or of blocks (oldest first) is
  // enough. False if the bound on operations ended the search.
  bool is_least = false;
  std::uint64_t peak_reserved_bytes = 0;  // of the simulation; 0 if not verified
};

struct OomFixes {
  // Verified fixes come first, by change and then by bytes. Refuted ones follow.
  std::vector<OomFix> tried;
  // The simulation fails too, under the same cap and settings. Otherwise it proves nothing.
  bool reproduced = false;
  std::string note;                         // the reason if there are no fixes, or not all; else ""
  std::uint64_t operation_count = 0;        // simulated, all runs together
  std::uint64_t later_operation_count = 0;  // of the trace, after the request that failed

  std::vector<OomFix> verified() const;
};

struct OomFixOptions {
  // Bound on simulated operations, all runs together; one takes about 1 us. A run that has begun
  // is finished, so the count may pass the bound by the length of the trace.
  std::uint64_t max_operations = 20'000'000;
  std::size_t max_sites = 4;  // tries this many of the largest sites
};

// Searches the report's own record, which ends with the request that failed. Returns only a note if
// the report has no record. Flushes are left out of the simulation, because the record writes a
// page that moves as a page that was flushed.
OomFixes find_fixes(const OomReport& report, const OomFixOptions& options = {});
// `failed_operation` is the index of the request that failed. The trace may go on after it.
OomFixes find_fixes(const OomReport& report, const record::MemoryTrace& trace,
                    std::size_t failed_operation, const OomFixOptions& options = {});

}  // namespace sluice::allocator
