// An allocator as a replay sees it: it gives addresses to allocations, in a simulated memory of a
// given capacity. Policies are replicas of other allocators' rules (peers/) and our own allocators
// over a device that only counts (own_policies.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/record/memory_trace.hpp"

namespace sluice::replay {

struct PolicyCounters {
  std::uint64_t reserved_bytes = 0;  // physical memory held
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t driver_allocations = 0;  // segments or physical handles obtained
  std::uint64_t flushes = 0;             // times that all cached memory was freed
  std::uint64_t remaps = 0;              // handles mapped again elsewhere
  std::uint64_t synchronisations = 0;    // times that the host waited for a stream
  std::uint64_t event_waits = 0;         // times that a stream was made to wait for another
  std::uint64_t planned_count = 0;       // allocations answered from a plan
  std::uint64_t fallback_count = 0;      // allocations outside a plan that was in use
};

class ReplayPolicy {
 public:
  virtual ~ReplayPolicy() = default;
  ReplayPolicy() = default;
  ReplayPolicy(const ReplayPolicy&) = delete;
  ReplayPolicy& operator=(const ReplayPolicy&) = delete;

  // Returns the simulated address of allocation `id`, which shares no byte with any that is held or
  // pending. Returns nothing if the allocator is out of memory, after everything it does against
  // it.
  virtual std::optional<std::uint64_t> allocate(std::uint32_t id) = 0;
  // pending: other streams use the block until complete(id). Until then its bytes may not be given
  // out, unless the policy waits for these uses (and counts the wait); complete() then does
  // nothing.
  virtual void free(std::uint32_t id, bool pending) = 0;
  virtual void complete(std::uint32_t id) = 0;
  virtual void step() {}
  // The caller frees all cached memory (torch.cuda.empty_cache).
  virtual void flush() = 0;
  // A private pool's cached memory is freed, because its graph has ended.
  virtual void release_pool(std::uint64_t) {}
  // Where allocation `id` lies, which the trace holds before its first operation.
  virtual std::uint64_t initial_address(std::uint32_t id) const = 0;
  virtual PolicyCounters counters() const = 0;
  // Equals counters().reserved_bytes. It is called after every operation, so it must be cheap.
  virtual std::uint64_t reserved_bytes() const { return counters().reserved_bytes; }
  // False if the memory that the trace holds before its first operation did not fit.
  virtual bool is_adopted() const { return true; }
  // Whether operations from here on are scored: a plan is in use, or the policy makes none.
  virtual bool is_steady() const { return true; }
};

// Makes a policy for `trace`, which must outlive it. The policy begins with the memory that the
// trace holds before its first operation. capacity_bytes is the memory of the simulated device;
// UINT64_MAX means unlimited.
using PolicyFactory = std::function<std::unique_ptr<ReplayPolicy>(const record::MemoryTrace& trace,
                                                                  std::uint64_t capacity_bytes)>;

struct NamedPolicy {
  std::string name;
  PolicyFactory make;
};

}  // namespace sluice::replay
