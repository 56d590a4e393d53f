// The memory traffic of an optimizer step without its arithmetic: the baseline of bench adam.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels::host {
class Parallel;
}

namespace sluice::bench {

// Touches the same memory as Kernels::update for these options, in the same pieces, stages and
// cache lines, with the same prefetches. It reads the gradient, reads and writes master and
// moments (and the weight of a split master), and writes a weight next to a master. `mask` is
// xor-ed into every value that is read and written: 0 keeps the states, and the compiler cannot
// know that. A weight that is only written becomes a combination of the values read. buffers.elems
// is a multiple of 4,096.
void adam_traffic(const kernels::host::Parallel& parallel, const kernels::OptimizerOptions& options,
                  const kernels::UpdateBuffers& buffers, std::uint32_t mask);

// The widest instruction set that the vectorised kernels use on this CPU ("AVX2").
const char* vector_instruction_set();

}  // namespace sluice::bench
