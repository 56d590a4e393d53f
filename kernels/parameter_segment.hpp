// The pieces of tensors that an update meets in a chunk.
#pragma once

#include <cstdint>

#include "kernels/optimizer_options.hpp"

namespace sluice::kernels {

// How the keys of a segment's elements follow each other (key_runs.hpp).
struct KeyRuns {
  std::int64_t length = 0;  // elements of a run; 0: the keys of all elements follow each other
  std::int64_t skip = 0;    // keys between two runs
  std::int64_t before = 0;  // elements of the first run in front of the segment, less than `length`
};

// The piece of a tensor inside a chunk. Segments ascend and do not overlap. Elements between them
// are neither read nor written, except in kBlock8 blocks, which are written whole: zeros stay
// zeros.
struct ParameterSegment {
  std::int64_t begin = 0, end = 0;  // elements of the chunk
  float weight_decay = 0.0f;
  float lr_scale = 1.0f;
  // Index of element `begin` in the whole model; the key of stochastic rounding.
  std::uint64_t first_key = 0;
  // For rules that need whole tensors: the shape, and the tensor's offset in a kPerTensor state.
  TensorView tensor = {};
  std::uint64_t moment2_begin = 0;
  // The keys after the first one, if they do not all follow each other: some columns of a tensor.
  KeyRuns runs = {};
};

}  // namespace sluice::kernels
