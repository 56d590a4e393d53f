// An allocator as a replay sees it: addresses for allocations, in a simulated memory of a given
// capacity. Peers are replicas of their rules (peers/); ours are the allocators themselves over a
// device that only counts.
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
  std::uint64_t flushes = 0;             // times that all cached memory was given back
  std::uint64_t remaps = 0;              // handles mapped again elsewhere
  std::uint64_t synchronisations = 0;    // times that the host waited for a stream
  std::uint64_t event_waits = 0;         // times that a stream was made to wait for another
  std::uint64_t planned_count = 0;       // allocations answered from a plan
  std::uint64_t fallback_count = 0;      // while there was a plan, but not by it
};

class ReplayPolicy {
 public:
  virtual ~ReplayPolicy() = default;
  ReplayPolicy() = default;
  ReplayPolicy(const ReplayPolicy&) = delete;
  ReplayPolicy& operator=(const ReplayPolicy&) = delete;

  // The simulated address of allocation `id`, which shares no byte with any that is held or
  // pending, or empty: out of memory, after all that the allocator does against it.
  virtual std::optional<std::uint64_t> allocate(std::uint32_t id) = 0;
  // pending: uses on other streams are queued until complete(id); its bytes may not be handed out
  // before, unless the policy waits for them (and counts that). complete() of what was waited for
  // does nothing.
  virtual void free(std::uint32_t id, bool pending) = 0;
  virtual void complete(std::uint32_t id) = 0;
  virtual void step() {}
  // The caller asks for all cached memory to be given back (torch.cuda.empty_cache).
  virtual void flush() = 0;
  virtual PolicyCounters counters() const = 0;
  // The same as counters().reserved_bytes; asked after every operation.
  virtual std::uint64_t reserved_bytes() const { return counters().reserved_bytes; }
  // False: what the trace holds before its first operation did not fit.
  virtual bool is_adopted() const { return true; }
  // Whether what the policy does from here on is to be scored: a plan is in use, or none is made.
  virtual bool is_steady() const { return true; }
};

// A policy for `trace`, which must outlive it, holding what the trace holds before its first
// operation. capacity_bytes: what the simulated device has; UINT64_MAX: no end.
using PolicyFactory = std::function<std::unique_ptr<ReplayPolicy>(const record::MemoryTrace& trace,
                                                                  std::uint64_t capacity_bytes)>;

struct NamedPolicy {
  std::string name;
  PolicyFactory make;
};

}  // namespace sluice::replay
