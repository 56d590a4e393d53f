// Element types, their sizes, and how fp32 is rounded to the 16-bit ones
// (docs/design/arithmetic.md).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// The block of law 2: partial sums of the gradient norm, piece and chunk borders, and the tagged
// blocks of storage are all multiples of it, so that no cut of the work changes a result.
inline constexpr std::uint64_t kLawBlockElems = 4096;

// The largest factor by which fp16 training scales its loss.
inline constexpr std::int64_t kMaxLossScale = std::int64_t{1} << 32;

// kBlock8 is a format of optimizer moments. For each 4,096 elements it holds the fp32 scales of the
// 32 blocks of 128 elements, then the 4,096 8-bit codes (kernels/block8.hpp).
enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kI16, kU16, kU8, kBlock8 };

inline constexpr std::uint64_t kBlock8Elems = 128;
inline constexpr std::uint64_t kBlock8GroupElems = kLawBlockElems;  // a cut parts no group
inline constexpr std::uint64_t kBlock8GroupBytes =
    kBlock8GroupElems + kBlock8GroupElems / kBlock8Elems * sizeof(float);

// Bytes of one element. 0 for kBlock8, since its elements have no bytes of their own; see bytes_of.
constexpr std::size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kU8:
      return 1;
    case DType::kBlock8:
      return 0;
  }
  return 0;
}

// The smallest group of elements that cannot be split, and its bytes.
struct DTypeGroup {
  std::uint64_t elems = 1;
  std::uint64_t bytes = 1;
};
constexpr DTypeGroup dtype_group(DType type) {
  if (type == DType::kBlock8) return {kBlock8GroupElems, kBlock8GroupBytes};
  return {1, dtype_bytes(type)};
}

// Convert between elements and bytes. Precondition: elems and bytes are whole groups.
constexpr std::uint64_t bytes_of(DType type, std::uint64_t elems) {
  const DTypeGroup group = dtype_group(type);
  return elems / group.elems * group.bytes;
}
constexpr std::uint64_t elems_in(DType type, std::uint64_t bytes) {
  const DTypeGroup group = dtype_group(type);
  return bytes / group.bytes * group.elems;
}

// The safetensors spelling: "F32", "BF16", ... ("BLOCK8" is not in the standard.)
std::string_view dtype_name(DType type);

// A bf16 number in memory. Arithmetic happens in fp32.
struct bf16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even. NaN stays NaN (quiet). For activations and gradients.
constexpr bf16 bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return bf16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Round to nearest, ties away from zero, in integer arithmetic: for *weights* only. The remainder
// master - weight then always fits a signed 16-bit integer (kernels/split_master.hpp).
constexpr bf16 bf16_weight_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return bf16{static_cast<std::uint16_t>((bits + 0x8000u) >> 16)};
}

// An IEEE 754 binary16 number in memory. Arithmetic happens in fp32.
struct f16 {
  std::uint16_t bits = 0;
};

// Exact, subnormals included; a NaN becomes quiet. No fp32 subnormal occurs on the way, so the
// result is the same on a thread that flushes them.
constexpr float to_float(f16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  std::uint32_t bits = (magnitude << 13) + (112u << 23);  // exponent bias: 127 - 15
  if (magnitude > 0x7c00u) {
    bits = 0x7fc00000u | (magnitude << 13);
  } else if (magnitude == 0x7c00u) {
    bits = 0x7f800000u;
  } else if (magnitude < 0x400u) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | bits);
}

// Round to nearest, ties to even, for weights and for everything else (fp16 has no split master).
// Values from 65,520 on become infinity, values below 2^-14 subnormal. NaN stays NaN (quiet,
// upper payload kept).
constexpr f16 f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65,520: half-way from the largest number to 2^16
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // 2^-25 is half-way to the least subnormal; it becomes 0
    // In units of 2^-24: the mantissa shifted out by 126 - exponent, 14 to 24 bits.
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t odd = (mantissa >> shift) & 1u;
    half = (mantissa + ((1u << (shift - 1)) - 1u) + odd) >> shift;
  }
  return f16{static_cast<std::uint16_t>(sign | half)};
}

}  // namespace sluice
