// What an allocator's bench asks for, again and again: one iteration of a generated training step,
// or a part of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/record/memory_trace.hpp"

namespace sluice::bench {

// Allocations are named by their index in trace.allocations. The trace's operations are empty.
struct AllocationMix {
  struct Operation {
    bool is_alloc = false;
    std::uint32_t allocation = 0;
  };
  std::string name;
  record::MemoryTrace trace;
  std::vector<std::uint32_t> resident;  // allocated once, before the first iteration
  // An iteration frees all that it allocates: what outlives it in the trace is freed at its end,
  // and frees of what is older are left out.
  std::vector<Operation> operations;
};

// Of a warm iteration of a "dense" trace: "small" (requests of 512 B to 1 MiB), "large" (above, to
// 1 GiB), "step" (all of them, beside the resident states). layers: of the transformer; 0: 24.
std::vector<AllocationMix> dense_mixes(std::uint32_t layers);

}  // namespace sluice::bench
