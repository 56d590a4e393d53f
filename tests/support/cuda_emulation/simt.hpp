// The functions of kernels/cuda/simt.cuh on the CPU: launches, shared memory, the tensor core's
// product and asynchronous copies. See there for the contracts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#include "base/dtype.hpp"
#include "tests/support/cuda_emulation/block_runner.hpp"
#include "tests/support/cuda_emulation/builtins.hpp"

namespace sluice::emulation {

// Null stream: runs here and now. Else it is queued on that stream of the driver library that this
// process has loaded (cuLaunchHostFunc). A failure there ends the process with its message, because
// no caller waits for it. Errors: DeviceError.
void launch(cudaStream_t stream, const LaunchShape& shape, std::function<void()> kernel);

void check_shared(const void* address, std::size_t bytes);
void copy_async(void* shared, const void* global, int bytes);
void commit_copies();
void wait_for_copies(int groups_left);

// Addresses that the lanes name of eight 8x8 matrices' rows each.
void load_matrices(std::uint32_t (&registers)[4], const void* row, bool transposed,
                   const Place& where);

using Widen = float (*)(std::uint16_t);
void multiply_accumulate(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                         Widen widen, const Place& where);

}  // namespace sluice::emulation

namespace sluice::kernels::cuda {

template <class... P, class... A>
void launch(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
            void (*kernel)(P...), A&&... args) {
  emulation::launch(stream, {grid, block, shared_bytes},
                    [kernel, parameters = std::tuple<P...>(std::forward<A>(args)...)] {
                      std::apply(kernel, parameters);
                    });
}

// A small machine, so that grid-stride loops take several strides in small tests.
inline int multiprocessor_count() {
  return 2;
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::BlockRunner::current().dynamic_shared());
}

template <class T>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  const emulation::Place where = emulation::Place::current()) {
  emulation::multiply_accumulate(
      d, a, b, [](std::uint16_t bits) { return to_float(T{bits}); }, where);
}

inline void ldmatrix_x4(std::uint32_t (&registers)[4], const void* row,
                        const emulation::Place where = emulation::Place::current()) {
  emulation::load_matrices(registers, row, false, where);
}
inline void ldmatrix_x4_trans(std::uint32_t (&registers)[4], const void* row,
                              const emulation::Place where = emulation::Place::current()) {
  emulation::load_matrices(registers, row, true, where);
}

inline void copy_async_16(void* shared, const void* global, int bytes = 16) {
  emulation::copy_async(shared, global, bytes);
}
inline void copy_async_commit() {
  emulation::commit_copies();
}
template <int kGroupsLeft>
void copy_async_wait() {
  emulation::wait_for_copies(kGroupsLeft);
}

}  // namespace sluice::kernels::cuda
