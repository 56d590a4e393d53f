// The memory traffic of an AdamW step without its arithmetic: what bench adam compares with.
#pragma once

#include "kernels/kernels.hpp"

namespace sluice {

namespace host {
class Parallel;
}

// Reads gradient, master and moments, writes master, moments and the bf16 weight: the accesses of
// host::adamw in the same pieces. `mask` is xor-ed into all that is written; 0 leaves the states as
// they are, which the compiler cannot know.
void adam_traffic(const host::Parallel& parallel, const UpdateBuffers& buffers, std::uint32_t mask);

// The widest instruction set that the vectorised kernels use on this CPU ("AVX2").
const char* vector_instruction_set();

}  // namespace sluice
