// Small kernels that show the operations of simt.cuh and reduce.cuh, for one warp or block. Arrays
// are the device's; all queue on the default stream.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels::cuda {

// The values that lane l of a warp gets from each warp-wide call, with value(l) = 100 + l.
struct WarpResults {
  int from_lane_5;         // __shfl_sync
  int from_lane_3_of_8;    // __shfl_sync in groups of 8 lanes
  int xor_9;               // __shfl_xor_sync
  int up_4;                // __shfl_up_sync
  int down_4_of_16;        // __shfl_down_sync in groups of 16 lanes
  unsigned odd_lanes;      // __ballot_sync
  int any_below_0;         // __any_sync
  int all_above_99;        // __all_sync
  float sum;               // warp_sum
  double from_lane_7_f64;  // 8 bytes through a shuffle
};
void warp_calls(WarpResults* results);  // [64]: two warps

// out[i] = in[threads - 1 - i], through static and dynamic shared memory, and sums[i] = the block's
// sum of in. threads: a multiple of 32, up to 1,024.
void reverse_and_sum(const float* in, int threads, float* out, float* sums);

// d[16, 16] = d + a[16, 16] b[16, 16] by two products of the tensor core; numbers of a and b are of
// `type` (bf16 or f16). transposed: b is stored [column][row].
void tile_product(const std::uint16_t* a, const std::uint16_t* b, bool transposed, DType type,
                  float* d);

// out[0, 8) = in[0, 8) copied as group one, out[8, 16) = in[8, 16) as group two, of which only
// `valid_bytes` bytes are copied and the rest zeroes; groups are waited for one by one. uint16
// numbers.
void copy_in_groups(const std::uint16_t* in, int valid_bytes, std::uint16_t* out);

// counters[0] += 1 and counters[1] += lane, by each of `threads` threads.
void count_threads(int blocks, int threads, unsigned* counters);

}  // namespace sluice::kernels::cuda
