// The requests that the allocator bench repeats: one iteration of a generated training step, or a
// part of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/record/memory_trace.hpp"

namespace sluice::bench {

// Operations refer to allocations by their index in trace.allocations. The trace itself
// has no operations.
struct AllocationMix {
  struct Operation {
    bool is_alloc = false;
    std::uint32_t allocation = 0;
  };
  std::string name;
  record::MemoryTrace trace;
  std::vector<std::uint32_t> resident;  // allocated once, before the first iteration
  // An iteration frees everything that it allocates. Allocations that outlive it in the trace are
  // freed at its end; frees of older allocations are left out.
  std::vector<Operation> operations;
};

// The mixes of a warm iteration of a "dense" trace: "small" (requests of 512 B to 1 MiB), "large"
// (above that, to 1 GiB) and "step" (all requests, next to the resident states). layers: layers of
// the transformer; 0 means 24.
std::vector<AllocationMix> dense_mixes(std::uint32_t layers);

}  // namespace sluice::bench
