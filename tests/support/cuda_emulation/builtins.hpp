// CUDA's device builtins as plain C++, for kernel sources that are compiled a second time for the
// CPU (kernels/cuda/simt.cuh). Names and meanings are CUDA's (CUDA C++ Programming Guide, "C++
// language extensions"); so they are reserved names, and in the global namespace.
//
// A function that waits for other threads takes the source location of its call: all threads of a
// block, or lanes of a warp, must meet in the same call.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "base/error.hpp"
#include "tests/support/cuda_emulation/block_runner.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming)

// A block runs on one OS thread from beginning to end, so a variable of the block is one of
// that thread.
// Unlike CUDA's, these variables start as zeros.
#undef __shared__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict

inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local uint3 blockDim{};
inline constinit thread_local uint3 gridDim{};
inline constexpr int warpSize = sluice::emulation::kWarpLanes;

namespace sluice::emulation {

using Place = std::source_location;

template <class T>
T lane_value(const WarpValues& values, int lane) {
  T value;
  std::memcpy(&value, values[static_cast<std::size_t>(lane)].data(), sizeof(T));
  return value;
}

// source(lane, width): the lane to read, or a negative number for the own one.
template <class T, class Source>
T shuffle(unsigned mask, T value, int width, const Place& where, const Source& source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  BlockRunner& runner = BlockRunner::current();
  const WarpValues& values = runner.exchange(mask, &value, sizeof(T), where);
  const int lane = runner.lane();
  const int from = source(lane % width);
  if (from < 0 || from >= width) return value;
  return lane_value<T>(values, lane / width * width + from);
}

}  // namespace sluice::emulation

inline void __syncthreads(const std::source_location where = std::source_location::current()) {
  sluice::emulation::BlockRunner::current().barrier(where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const std::source_location where = std::source_location::current()) {
  const char none = 0;
  sluice::emulation::BlockRunner::current().exchange(mask, &none, 1, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              const std::source_location where = std::source_location::current()) {
  return sluice::emulation::shuffle(mask, value, width, where,
                                    [=](int) { return source & (width - 1); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  const std::source_location where = std::source_location::current()) {
  return sluice::emulation::shuffle(mask, value, width, where,
                                    [=](int lane) { return lane ^ lane_mask; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const std::source_location where = std::source_location::current()) {
  return sluice::emulation::shuffle(mask, value, width, where,
                                    [=](int lane) { return lane - static_cast<int>(delta); });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const std::source_location where = std::source_location::current()) {
  return sluice::emulation::shuffle(mask, value, width, where,
                                    [=](int lane) { return lane + static_cast<int>(delta); });
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const std::source_location where = std::source_location::current()) {
  using namespace sluice::emulation;
  const int mine = predicate != 0;
  const WarpValues& values = BlockRunner::current().exchange(mask, &mine, sizeof(mine), where);
  unsigned bits = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    bits |= static_cast<unsigned>(lane_value<int>(values, lane)) << lane;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int predicate,
                      const std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) == 0xffffffffu;
}

// One OS thread runs one block at a time and a CUDA thread is never interrupted.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
                std::is_same_v<T, unsigned long long> || std::is_same_v<T, float>);
  const T before = *address;
  *address = before + value;
  return before;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  const T before = *address;
  *address = std::max(before, value);
  return before;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  const T before = *address;
  *address = std::min(before, value);
  return before;
}
[[noreturn]] inline void __trap() {
  throw sluice::DeviceError("a kernel stopped itself (__trap)");
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// A builtin of one expression.
#define SLUICE_BUILTIN(type, name, parameters, value) \
  inline type name parameters {                       \
    return value;                                     \
  }

SLUICE_BUILTIN(unsigned, __float_as_uint, (float value), std::bit_cast<unsigned>(value))
SLUICE_BUILTIN(float, __uint_as_float, (unsigned bits), std::bit_cast<float>(bits))
SLUICE_BUILTIN(int, __float_as_int, (float value), std::bit_cast<int>(value))
SLUICE_BUILTIN(float, __int_as_float, (int bits), std::bit_cast<float>(bits))
SLUICE_BUILTIN(long long, __double_as_longlong, (double value), std::bit_cast<long long>(value))
SLUICE_BUILTIN(double, __longlong_as_double, (long long bits), std::bit_cast<double>(bits))

// Compiled with -ffp-contract=off: each is one rounded operation.
SLUICE_BUILTIN(float, __fadd_rn, (float a, float b), a + b)
SLUICE_BUILTIN(float, __fsub_rn, (float a, float b), a - b)
SLUICE_BUILTIN(float, __fmul_rn, (float a, float b), (a * b))
SLUICE_BUILTIN(float, __fdiv_rn, (float a, float b), a / b)
SLUICE_BUILTIN(float, __fsqrt_rn, (float a), std::sqrt(a))
SLUICE_BUILTIN(float, __fmaf_rn, (float a, float b, float c), std::fma(a, b, c))
SLUICE_BUILTIN(double, __dadd_rn, (double a, double b), a + b)
SLUICE_BUILTIN(double, __dsub_rn, (double a, double b), a - b)
SLUICE_BUILTIN(double, __dmul_rn, (double a, double b), (a * b))
SLUICE_BUILTIN(double, __ddiv_rn, (double a, double b), a / b)
SLUICE_BUILTIN(double, __dsqrt_rn, (double a), std::sqrt(a))
SLUICE_BUILTIN(double, __fma_rn, (double a, double b, double c), std::fma(a, b, c))
SLUICE_BUILTIN(float, __double2float_rn, (double a), static_cast<float>(a))
SLUICE_BUILTIN(float, __int2float_rn, (int a), static_cast<float>(a))
SLUICE_BUILTIN(float, __uint2float_rn, (unsigned a), static_cast<float>(a))
SLUICE_BUILTIN(int, __float2int_rn, (float a), static_cast<int>(std::nearbyint(a)))

// Approximations on a GPU, and exact to a rounding here.
SLUICE_BUILTIN(float, rsqrtf, (float a), 1.0f / std::sqrt(a))
SLUICE_BUILTIN(float, __expf, (float a), std::exp(a))
SLUICE_BUILTIN(float, __logf, (float a), std::log(a))
SLUICE_BUILTIN(float, __fdividef, (float a, float b),
               std::fabs(b) > 0x1p126f && std::isfinite(b) ? 0.0f : a / b)
SLUICE_BUILTIN(float, __frcp_rn, (float a), 1.0f / a)
SLUICE_BUILTIN(float, __saturatef, (float a), std::fmin(std::fmax(a, 0.0f), 1.0f))

SLUICE_BUILTIN(int, __clz, (int value), std::countl_zero(static_cast<unsigned>(value)))
SLUICE_BUILTIN(int, __popc, (unsigned value), std::popcount(value))
SLUICE_BUILTIN(int, __ffs, (int value),
               value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1)
SLUICE_BUILTIN(unsigned, __umulhi, (unsigned a, unsigned b),
               static_cast<unsigned>((std::uint64_t{a} * b) >> 32))
#undef SLUICE_BUILTIN

template <class T>
T __ldg(const T* address) {
  return *address;
}

// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming)
