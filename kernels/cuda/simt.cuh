// What every kernel source of this folder begins with: the builtins of CUDA C++ and, in
// sluice::cuda, launches, dynamic shared memory, tensor-core products and asynchronous copies.
//
// The sources are compiled twice: by nvcc for GPUs, and for tests by the host's compiler, where
// SLUICE_CUDA_EMULATION names a header that does the same on the CPU. So kernels use only what both
// have:
//   launch(stream, grid, block, shared_bytes, kernel, args...)
//       Queues kernel<<<grid, block, shared_bytes, stream>>>(args...). DeviceError where it cannot.
//   multiprocessor_count()              of the current device (host code): what a grid is sized by
//   dynamic_shared<T>()                 the block's shared_bytes, 256-byte aligned
//   mma_m16n8k16<T>(d, a, b)            d += a b for T = bf16 or f16; fragments as in PTX
//   ldmatrix_x4(r, row), _x4_trans      four 8x8 matrices; lane i names row i % 8 of matrix i / 8
//   copy_async_16(shared, global, n)    16 bytes, n of them from global and zeroes after (cp.async)
//   copy_async_commit(), copy_async_wait<N>()
// and CUDA's own builtins as far as tests/support/cuda_emulation/builtins.hpp has them. Warp-wide
// calls are made by all 32 lanes, with the full mask.
#pragma once

#ifdef SLUICE_CUDA_EMULATION
#include SLUICE_CUDA_EMULATION
#else
#include "kernels/cuda/simt_device.cuh"
#endif
