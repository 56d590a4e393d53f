// The memory traffic of an optimizer step without its arithmetic: what bench adam compares with.
#pragma once

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {
class Parallel;
}

namespace sluice::bench {

// Touches what Kernels::update touches for these options, in the same pieces, stages and lines,
// with the same prefetches: reads the gradient, reads and writes master and moments (a split
// master's weight too), writes a weight beside a master. `mask` is xor-ed into all that is read and
// written; 0 leaves the states as they are, which the compiler cannot know. A weight that is only
// written becomes the fold of what was read. buffers.elems: a multiple of 4,096.
void adam_traffic(const kernels::host::Parallel& parallel, const kernels::OptimizerOptions& options,
                  const kernels::UpdateBuffers& buffers, std::uint32_t mask);

// The widest instruction set that the vectorised kernels use on this CPU ("AVX2").
const char* vector_instruction_set();

}  // namespace sluice::bench
