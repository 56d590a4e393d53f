// The first include of every kernel source in this folder: the builtins of CUDA C++ and, in
// sluice::kernels::cuda, launches, dynamic shared memory, tensor-core products and asynchronous
// copies.
//
// The sources are compiled twice: by nvcc for GPUs, and by the host's compiler for tests. There
// SLUICE_CUDA_EMULATION names a header that does the same on the CPU. Kernels therefore use only
// the functions that both have:
//   launch(stream, grid, block, shared_bytes, kernel, args...)
//       Queues kernel<<<grid, block, shared_bytes, stream>>>(args...). Throws DeviceError.
//   multiprocessor_count()              of the current device (host code); sizes grids
//   dynamic_shared<T>()                 the block's shared_bytes, 256-byte aligned
//   mma_m16n8k16<T>(d, a, b)            d += a b for T = bf16 or f16; fragments as in PTX
//   ldmatrix_x4(r, row), _x4_trans      four 8x8 matrices; lane i names row i % 8 of matrix i / 8
//   copy_async_16(shared, global, n)    16 bytes, n of them from global and zeroes after (cp.async)
//   copy_async_commit(), copy_async_wait<N>()
// and CUDA's own builtins, as far as tests/support/cuda_emulation/builtins.hpp has them. All 32
// lanes make warp-wide calls, with the full mask.
#pragma once

#ifdef SLUICE_CUDA_EMULATION
#include SLUICE_CUDA_EMULATION
#else
#include "kernels/cuda/simt_device.cuh"
#endif
