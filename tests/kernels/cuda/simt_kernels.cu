#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "tests/kernels/cuda/simt_kernels.hpp"

namespace sluice::kernels::cuda {
namespace {

__global__ void warp_calls_kernel(WarpResults* results) {
  const int lane = lane_index();
  const int value = 100 + lane;
  WarpResults r;
  r.from_lane_5 = __shfl_sync(kAllLanes, value, 5);
  r.from_lane_3_of_8 = __shfl_sync(kAllLanes, value, 3, 8);
  r.xor_9 = __shfl_xor_sync(kAllLanes, value, 9);
  r.up_4 = __shfl_up_sync(kAllLanes, value, 4);
  r.down_4_of_16 = __shfl_down_sync(kAllLanes, value, 4, 16);
  r.odd_lanes = __ballot_sync(kAllLanes, lane % 2);
  r.any_below_0 = __any_sync(kAllLanes, value < 0);
  r.all_above_99 = __all_sync(kAllLanes, value > 99);
  r.sum = warp_sum(static_cast<float>(value));
  r.from_lane_7_f64 = __shfl_sync(kAllLanes, 1.0 / value, 7);
  __syncwarp();
  results[threadIdx.x] = r;
}

__global__ void __launch_bounds__(1024)
    reverse_and_sum_kernel(const float* in, float* out, float* sums) {
  __shared__ float scratch[kWarpSize];
  float* const shared = dynamic_shared<float>();
  shared[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
  sums[threadIdx.x] = block_sum(in[threadIdx.x], scratch);
}

// Tiles of 16 rows of 32 bytes. Matrices of ldmatrix are its 8x8 quarters.
template <class T, bool kTransposed>
__global__ void tile_product_kernel(const std::uint16_t* a, const std::uint16_t* b, float* d) {
  std::uint16_t* const a_tile = dynamic_shared<std::uint16_t>();
  std::uint16_t* const b_tile = a_tile + 256;
  const int lane = lane_index();
  copy_async_16(a_tile + lane * 8, a + lane * 8);
  copy_async_16(b_tile + lane * 8, b + lane * 8);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  const int quarter = lane / 8, row = lane % 8;
  std::uint32_t of_a[4], of_b[4];
  // Quarters by rows first: registers are rows 0 and 8 of columns 0, then of columns 8.
  ldmatrix_x4(of_a, a_tile + (quarter % 2 * 8 + row) * 16 + quarter / 2 * 8);
  // Columns 0..7 of b for registers 0 and 1 (its rows 0..7 and 8..15), columns 8..15 for 2 and 3.
  if constexpr (kTransposed) {
    ldmatrix_x4(of_b, b_tile + (quarter / 2 * 8 + row) * 16 + quarter % 2 * 8);
  } else {
    ldmatrix_x4_trans(of_b, b_tile + (quarter % 2 * 8 + row) * 16 + quarter / 2 * 8);
  }
  for (int half = 0; half < 2; ++half) {
    float sums[4];
    const auto at = [&](int i) {
      return (lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2;
    };
    for (int i = 0; i < 4; ++i) sums[i] = d[at(i)];
    mma_m16n8k16<T>(sums, of_a, {of_b[half * 2], of_b[half * 2 + 1]});
    for (int i = 0; i < 4; ++i) d[at(i)] = sums[i];
  }
}

__global__ void copy_in_groups_kernel(const std::uint16_t* in, int valid_bytes,
                                      std::uint16_t* out) {
  std::uint16_t* const shared = dynamic_shared<std::uint16_t>();
  if (threadIdx.x == 0) {
    copy_async_16(shared, in);
    copy_async_commit();
    copy_async_16(shared + 8, in + 8, valid_bytes);
    copy_async_commit();
  }
  copy_async_wait<1>();
  __syncthreads();
  if (threadIdx.x < 8) out[threadIdx.x] = shared[threadIdx.x];
  copy_async_wait<0>();
  __syncthreads();
  if (threadIdx.x >= 8 && threadIdx.x < 16) out[threadIdx.x] = shared[threadIdx.x];
}

__global__ void count_threads_kernel(unsigned* counters) {
  atomicAdd(counters, 1u);
  atomicAdd(counters + 1, static_cast<unsigned>(lane_index()));
}

}  // namespace

void warp_calls(WarpResults* results) {
  launch(nullptr, 1, 64, 0, &warp_calls_kernel, results);
}

void reverse_and_sum(const float* in, int threads, float* out, float* sums) {
  launch(nullptr, 1, static_cast<unsigned>(threads),
         static_cast<std::size_t>(threads) * sizeof(float), &reverse_and_sum_kernel, in, out, sums);
}

void tile_product(const std::uint16_t* a, const std::uint16_t* b, bool transposed, DType type,
                  float* d) {
  const auto run = [&](auto kernel) { launch(nullptr, 1, 32, 1024, kernel, a, b, d); };
  if (type == DType::kBF16) {
    run(transposed ? &tile_product_kernel<bf16, true> : &tile_product_kernel<bf16, false>);
  } else {
    run(transposed ? &tile_product_kernel<f16, true> : &tile_product_kernel<f16, false>);
  }
}

void copy_in_groups(const std::uint16_t* in, int valid_bytes, std::uint16_t* out) {
  launch(nullptr, 1, 32, 32, &copy_in_groups_kernel, in, valid_bytes, out);
}

void count_threads(int blocks, int threads, unsigned* counters) {
  launch(nullptr, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0,
         &count_threads_kernel, counters);
}

}  // namespace sluice::kernels::cuda
