// Out of memory as a report: what was asked, what is held and by whom, and the cause with the
// numbers that prove it. CachingAllocator makes one under its locks when a request fails and throws
// it with the error; oom_fixes.hpp looks for what would have helped, oom_text.hpp writes it down.
//
// Plain data: thread-safe to read, and independent of the allocator it tells of.
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

// Live is what callers hold, in the bytes they asked for. "May hold": what the allocator would hold
// if it had every page that its caps and the device leave to it.
enum class OomCause : std::uint8_t {
  kTrueNeed,        // live + request pass what it may hold, and the device has no more
  kFragmentation,   // they do not: free bytes suffice, but not in pages that can be given
  kPendingStreams,  // nor do they, but for what is freed and still used by other streams. Never of
                    // a CachingAllocator, which waits for those; of a record of another's, perhaps
  kCap,             // they pass a cap, while the device has room for what is missing
  kExternal,        // they pass what others leave of the device, and would fit without others
};
std::string_view oom_cause_name(OomCause cause);

// What refused the next page.
enum class OomLimit : std::uint8_t { kTierCap, kCategoryCap, kDevice };

// UINT64_MAX: no cap.
struct OomLimits {
  std::uint64_t page_bytes = kPageBytes;
  std::uint64_t tier_cap_bytes = UINT64_MAX;
  std::uint64_t tier_charged_bytes = 0;     // by everybody
  Category category = Category::kExternal;  // that the allocator's pages are charged to
  std::uint64_t category_cap_bytes = UINT64_MAX;
  std::uint64_t category_charged_bytes = 0;
  std::uint64_t device_capacity_bytes = 0;
  std::uint64_t device_counted_bytes = 0;  // by the device itself: what this process holds there
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
  std::uint64_t pool = 0;  // of a trace: 0, or a private one (a graph's)
  bool movable = true;
  std::uint64_t live_bytes = 0;
  std::uint64_t pending_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_page_bytes = 0;  // of these, in whole pages
};

struct OomReport {
  // The request.
  std::uint64_t requested_bytes = 0;
  std::uint64_t block_bytes = 0;  // what a block for it takes
  std::uint64_t stream = 0;
  Category category = Category::kExternal;
  std::uint32_t site_number = 0;
  std::string site;

  OomLimits limits;

  // What is held. reserved = used + pending + cached + free.
  std::uint64_t live_bytes = 0;
  std::uint64_t live_count = 0;
  std::uint64_t used_bytes = 0;  // blocks of live bytes: rounded up
  std::uint64_t pending_bytes = 0;
  std::uint64_t cached_bytes = 0;  // in caches of threads, and what streams freed last
  std::uint64_t free_bytes = 0;
  std::uint64_t free_page_bytes = 0;     // of these, in whole pages that may move
  std::uint64_t fixed_page_bytes = 0;    // in whole pages of streams that are not movable
  std::uint64_t largest_free_bytes = 0;  // the largest free block
  std::uint64_t reserved_bytes = 0;
  std::uint64_t free_part_bytes() const { return free_bytes - free_page_bytes - fixed_page_bytes; }
  // Of a PlanningAllocator's arenas, all of which counts as live, on the streams that they were
  // asked on (what nobody uses of them is "planned arena, not in use" among the sites).
  std::uint64_t arena_bytes = 0;
  std::uint64_t arena_live_bytes = 0;

  // Live bytes, three times; the sums are equal.
  std::array<std::uint64_t, kCategoryCount> live_by_category{};
  std::vector<OomSite> sites;      // by name and category, most bytes first
  std::vector<OomStream> streams;  // by number

  // What follows from the above: prove_cause().
  OomLimit limit = OomLimit::kDevice;
  std::uint64_t may_hold_bytes = 0;
  std::uint64_t external_bytes = 0;  // of the device, where it refused what it counts as free
  OomCause cause = OomCause::kTrueNeed;
  std::string proof;  // the inequality, with its numbers

  // What a simulation needs.
  CachingAllocatorOptions options;                       // without a recorder
  std::shared_ptr<const record::MemorySnapshot> record;  // up to the request; null: no recorder

  // One sentence: the request, what is live, the cause.
  std::string sentence() const;
};

// Sets what follows from the rest of the report.
void prove_cause(OomReport& report);

// An arena lies in the allocator as one unnamed block of activations: tells of its tenants, and of
// what they leave of it, in its place.
void add_arena(OomReport& report, std::uint64_t arena_bytes,
               const std::vector<record::SnapshotBlock>& tenants);

// OutOfMemory of tier device, with its report.
class OutOfMemoryReported : public OutOfMemory {
 public:
  explicit OutOfMemoryReported(std::shared_ptr<const OomReport> report_in);

  std::shared_ptr<const OomReport> report;  // not null
};

}  // namespace sluice::allocator
