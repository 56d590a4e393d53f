// The pseudo-random inputs of tests/kernels/data/torch_optimizers.txt, as the script that recorded
// it draws them (tools/bench/torch_optimizers.py).
#pragma once

#include <cstdint>

namespace sluice::kernels::host {

// The finisher of a 32-bit hash: each input bit changes each output bit in about half of all cases.
inline std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

inline std::uint32_t word(std::uint32_t tensor, std::uint32_t step, std::uint32_t index) {
  return mix(mix(mix(tensor + 1) + step) + index);
}

// 22 bits, half of them below zero.
inline std::int32_t centred(std::uint32_t w) {
  return static_cast<std::int32_t>(w >> 10) - 2097152;
}

}  // namespace sluice::kernels::host
