// The tree over host memory, in blocks that fit the first-level cache: a block of each part is
// converted and added into a stack of partial sums, and the one sum that remains is rounded.
#include "collectives/fold.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/error.hpp"

namespace sluice::collectives {
namespace {

// A partial sum takes 2 KiB, so those of up to 2,048 parts fit 24 KiB.
constexpr std::uint64_t kBlockElems = 512;
// Partial sums of at most 2^17 - 1 parts.
constexpr int kMostSums = 17;

template <class Part, class Sum>
Sum load(Part value) {
  if constexpr (std::is_same_v<Part, Sum>) {
    return value;
  } else {
    return to_float(value);
  }
}
template <class Sum, class Out>
Out store(Sum sum) {
  if constexpr (std::is_same_v<Sum, Out>) {
    return sum;
  } else if constexpr (std::is_same_v<Out, bf16>) {
    return bf16_from_float(sum);
  } else {
    return f16_from_float(sum);
  }
}

template <class Part, class Sum, class Out>
void fold(std::span<const void* const> parts, void* out, std::uint64_t elems) {
  std::array<std::array<Sum, kBlockElems>, kMostSums> sums;
  for (std::uint64_t begin = 0; begin < elems; begin += kBlockElems) {
    const std::uint64_t count = std::min(kBlockElems, elems - begin);
    std::size_t held = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto* const from = static_cast<const Part*>(parts[i]) + begin;
      for (std::uint64_t at = 0; at < count; ++at) sums[held][at] = load<Part, Sum>(from[at]);
      ++held;
      for (int left = count_additions(i, parts.size()); left > 0; --left) {
        --held;
        const Sum* const newest = sums[held].data();
        Sum* const before = sums[held - 1].data();
        for (std::uint64_t at = 0; at < count; ++at) before[at] += newest[at];
      }
    }
    auto* const to = static_cast<Out*>(out) + begin;
    for (std::uint64_t at = 0; at < count; ++at) to[at] = store<Sum, Out>(sums[0][at]);
  }
}

// fp32 or a 16-bit float, to its own type or to fp32 or from it.
template <class Part>
void fold_floats(std::span<const void* const> parts, DType part, void* out, DType result,
                 std::uint64_t elems) {
  if (result == part) return fold<Part, float, Part>(parts, out, elems);
  if (result == DType::kF32) return fold<Part, float, float>(parts, out, elems);
  SLUICE_CHECK(part == DType::kF32);
  if (result == DType::kBF16) return fold<Part, float, bf16>(parts, out, elems);
  if (result == DType::kF16) return fold<Part, float, f16>(parts, out, elems);
  throw InternalError("a sum over ranks of F32 as " + std::string(dtype_name(result)));
}

}  // namespace

void fold_tree(std::span<const void* const> parts, DType part, void* out, DType result,
               std::uint64_t elems) {
  SLUICE_CHECK(!parts.empty() && count_partial_sums(parts.size()) <= kMostSums);
  switch (part) {
    case DType::kF32:
      return fold_floats<float>(parts, part, out, result, elems);
    case DType::kBF16:
      return fold_floats<bf16>(parts, part, out, result, elems);
    case DType::kF16:
      return fold_floats<f16>(parts, part, out, result, elems);
    default:
      break;
  }
  SLUICE_CHECK(result == part);
  switch (part) {
    case DType::kF64:
      return fold<double, double, double>(parts, out, elems);
    case DType::kI64:  // unsigned, so that sums wrap
      return fold<std::uint64_t, std::uint64_t, std::uint64_t>(parts, out, elems);
    case DType::kI32:
      return fold<std::uint32_t, std::uint32_t, std::uint32_t>(parts, out, elems);
    default:
      throw InternalError("a sum over ranks of " + std::string(dtype_name(part)));
  }
}

}  // namespace sluice::collectives
