// Recomputation of a chain of unequal units in limited memory: which forward passes run again, and
// which values each run leaves.
//
// Schedules are persistent: a value that a run leaves stays until backward has read it. The least
// time for a given memory follows by dynamic programming over intervals of the chain (Beaumont,
// Eyraud-Dubois, Herrmann, Joly, Shilova: "Optimal checkpointing for heterogeneous chains", Inria
// RR-9302, arXiv 1911.13214, section 4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::planner {

struct ChainUnit {
  double forward_s = 0;
  std::uint64_t output_bytes = 0;
  std::uint64_t gradient_bytes = 0;  // of the output; it waits while units below run again
  std::uint64_t parts_bytes = 0;     // saved for backward
  // Memory of a pass besides the unit's input: that of forward with output, parts and workspace;
  // that of backward with gradients and workspace, without the parts.
  std::uint64_t forward_bytes = 0;
  std::uint64_t backward_bytes = 0;
  bool operator==(const ChainUnit&) const = default;
};

// The runs of one unit's forward pass: run 0 is the first.
struct ChainRuns {
  std::int32_t output_run = 0;  // leaves the output; 0 for the last unit
  std::int32_t parts_run = 0;   // leaves the parts; the last one
  bool operator==(const ChainRuns&) const = default;
};

// The runs of each unit with the least time in `memory_bytes`, besides the chain's input. Nothing
// if there are none. Backward begins right after the last unit's forward pass, and one unit's parts
// stay with its output. Memory is counted in at most `slots` equal amounts, and sizes are rounded up
// to these.
std::optional<std::vector<ChainRuns>> least_recomputation(const std::vector<ChainUnit>& chain,
                                                          std::uint64_t memory_bytes,
                                                          std::uint64_t slots);

// The runs that need the least memory, if any need at most `memory_bytes`; counted as above.
std::optional<std::vector<ChainRuns>> most_frugal_recomputation(const std::vector<ChainUnit>& chain,
                                                                std::uint64_t memory_bytes,
                                                                std::uint64_t slots);

// The memory that these runs take, besides the chain's input.
std::uint64_t chain_peak_bytes(const std::vector<ChainUnit>& chain,
                               const std::vector<ChainRuns>& runs);

}  // namespace sluice::planner
