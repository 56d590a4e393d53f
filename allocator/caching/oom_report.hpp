// The report of an out-of-memory error: the request, the memory held by category, site and stream,
// and the cause with the numbers that prove it. When a request fails, CachingAllocator makes the
// report under its locks and throws it with the error. oom_fixes.hpp searches for changes that
// would have helped; oom_text.hpp formats the report.
//
// Plain data: any thread may read it, and it does not refer to the allocator.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/caching/caching_allocator.hpp"
#include "allocator/record/memory_trace.hpp"
#include "base/error.hpp"

namespace sluice::allocator {

// "Live" is the memory that callers hold, in requested bytes. "May hold" is the memory that the
// allocator would hold with every page that its caps and the device leave to it. "Need" is live
// plus the request.
enum class OomCause : std::uint8_t {
  kTrueNeed,        // the need exceeds may hold, and the device has no more
  kFragmentation,   // the need fits, and free bytes suffice, but not in pages that can move
  kPendingStreams,  // the need fits, but bytes that are freed are still used by other streams. A
                    // CachingAllocator waits for those; the record of another allocator may have it
  kCap,             // the need exceeds a cap, but the device has room for the missing bytes
  kExternal,        // the need would fit without the device memory of other processes
};
std::string_view oom_cause_name(OomCause cause);

// The limit that refused the next page.
enum class OomLimit : std::uint8_t { kTierCap, kCategoryCap, kDevice };

// UINT64_MAX: no cap.
struct OomLimits {
  std::uint64_t page_bytes = kPageBytes;
  std::uint64_t tier_cap_bytes = UINT64_MAX;
  std::uint64_t tier_charged_bytes = 0;     // by all users of the ledger
  Category category = Category::kExternal;  // the category of the allocator's pages
  std::uint64_t category_cap_bytes = UINT64_MAX;
  std::uint64_t category_charged_bytes = 0;
  std::uint64_t device_capacity_bytes = 0;
  std::uint64_t device_counted_bytes = 0;  // held by this process, counted by the device itself
};

struct OomSite {
  std::uint32_t number = 0;  // AllocationRequest::name
  Category category = Category::kExternal;
  std::string name;  // "": not named
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
};

struct OomStream {
  std::uint64_t stream = 0;
  std::uint64_t pool = 0;  // in a trace: 0, or a private pool (of a graph)
  bool movable = true;
  std::uint64_t live_bytes = 0;
  std::uint64_t pending_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_page_bytes = 0;  // of these, in whole pages
};

struct OomReport {
  // The request.
  std::uint64_t requested_bytes = 0;
  std::uint64_t block_bytes = 0;  // the size of a block for it
  std::uint64_t stream = 0;
  Category category = Category::kExternal;
  std::uint32_t site_number = 0;
  std::string site;

  OomLimits limits;

  // The memory held: reserved = used + pending + cached + free.
  std::uint64_t live_bytes = 0;
  std::uint64_t live_count = 0;
  std::uint64_t used_bytes = 0;  // blocks of live bytes: rounded up
  std::uint64_t pending_bytes = 0;
  std::uint64_t cached_bytes = 0;  // in caches of threads, and the last large block of each pool
  std::uint64_t free_bytes = 0;
  std::uint64_t free_page_bytes = 0;     // of these, in whole pages that may move
  std::uint64_t fixed_page_bytes = 0;    // of these, in whole pages of streams that are not movable
  std::uint64_t largest_free_bytes = 0;  // the largest free block
  std::uint64_t reserved_bytes = 0;
  std::uint64_t free_part_bytes() const { return free_bytes - free_page_bytes - fixed_page_bytes; }
  // The arenas of a PlanningAllocator. All of their bytes count as live, on the stream of the
  // arena's own request. Their unused bytes are the site "planned arena, not in use".
  std::uint64_t arena_bytes = 0;
  std::uint64_t arena_live_bytes = 0;

  // Live bytes in three divisions with equal sums.
  std::array<std::uint64_t, kCategoryCount> live_by_category{};
  std::vector<OomSite> sites;      // by name and category, most bytes first
  std::vector<OomStream> streams;  // by number

  // Derived from the above by prove_cause().
  OomLimit limit = OomLimit::kDevice;
  std::uint64_t may_hold_bytes = 0;
  std::uint64_t external_bytes = 0;  // free by the device's count, but the device refused a page
  OomCause cause = OomCause::kTrueNeed;
  std::string proof;  // the inequality, with its numbers

  // The input of a simulation.
  CachingAllocatorOptions options;                       // without a recorder
  std::shared_ptr<const record::MemorySnapshot> record;  // up to the request; null: no recorder

  // One sentence: the request, the live bytes, the cause.
  std::string sentence() const;
};

// Derives limit, may_hold_bytes, external_bytes, cause and proof from the rest of the report.
void prove_cause(OomReport& report);

// An arena is one unnamed block of activations in the allocator. Replaces that block in the report
// by the allocations inside it and the unused rest.
void add_arena(OomReport& report, std::uint64_t arena_bytes,
               const std::vector<record::SnapshotBlock>& allocations);

// OutOfMemory of tier device, with its report.
class OutOfMemoryReported : public OutOfMemory {
 public:
  explicit OutOfMemoryReported(std::shared_ptr<const OomReport> report_in);

  std::shared_ptr<const OomReport> report;  // not null
};

}  // namespace sluice::allocator
