// Which GPUs run the code of a build, by the list of architectures that nvcc compiled for.
//
// The list is CMake's, with commas: "80,90-real,120-virtual". A number stands for machine code and
// PTX, `-real` for machine code alone, `-virtual` for PTX alone. Machine code runs on GPUs of its
// major version from its minor version on. The driver compiles PTX for every later GPU, unless the
// number has a letter: such code is for one generation ("90a") or one family ("120f").
#pragma once

#include <string>
#include <string_view>

namespace sluice::kernels {

// Returns the reason why a GPU of this compute capability has no code in the list, as a sentence
// without a full stop that begins with "it". Empty if it has.
std::string missing_cuda_code(std::string_view architectures, int compute_major, int compute_minor);

// "8.0, 9.0 and 12.0": the compute capabilities of the list.
std::string list_cuda_code(std::string_view architectures);

}  // namespace sluice::kernels
