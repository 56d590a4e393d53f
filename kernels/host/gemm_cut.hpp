// The cut of a product's output: a function of the shape, never of the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::kernels::host {

// An extent cut into `parts` pieces of `size` (the last one shorter). Pieces are as even as
// multiples of `multiple` allow, and none exceeds `most` (also a multiple, or the extent).
struct Cut {
  std::int64_t extent, size, parts;

  Cut(std::int64_t whole, std::int64_t most, std::int64_t multiple) : extent(whole) {
    const std::int64_t wanted = quotient_up(whole, std::min(most, whole));
    const std::int64_t even = quotient_up(whole, wanted);
    size = std::min(whole, quotient_up(even, multiple) * multiple);
    parts = quotient_up(whole, size);
  }

  std::int64_t begin(std::int64_t part) const { return part * size; }
  std::int64_t length(std::int64_t part) const { return std::min(size, extent - part * size); }

  static constexpr std::int64_t quotient_up(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
  }
};

// Tiles of a block [m, n], from 128 x 256 (fp32: 128 KiB, an eighth of an L2 cache) down to 64 x
// 64: the largest that keep sixteen threads busy.
struct Tiles {
  static constexpr std::int64_t kMostRows = 128, kMostCols = 256, kLeast = 64;

  Cut rows, cols;

  static Tiles of(std::int64_t m, std::int64_t n) {
    constexpr std::int64_t kEnough = 16;
    constexpr std::int64_t kSizes[][2] = {{kMostRows, kMostCols}, {128, 128}, {kLeast, 128}};
    for (const auto& size : kSizes) {
      const Tiles tiles{Cut(m, size[0], 16), Cut(n, size[1], 16)};
      if (tiles.count() >= kEnough) return tiles;
    }
    return {Cut(m, kLeast, 16), Cut(n, kLeast, 16)};
  }
  // Upper bound of the tiles of any block inside [m, n].
  static std::int64_t most(std::int64_t m, std::int64_t n) {
    return Cut::quotient_up(m, kLeast) * Cut::quotient_up(n, kLeast);
  }

  std::int64_t count() const { return rows.parts * cols.parts; }
};

// Rows that lie a multiple of 2 KiB apart share a few sets of an L1 cache (64 sets of 64-byte
// lines, 8 to 12 ways). Packing a panel across them runs at memory latency. Transposed sgemm
// reached 31 GF/s at a stride of 1,024 floats, 58 at 512, and 75 to 80 at strides that are no
// multiple of 512.
inline bool aliases(std::int64_t stride_floats) {
  return stride_floats % 512 == 0;
}
inline std::int64_t unaliased_stride(std::int64_t floats) {
  return aliases(floats) ? floats + 16 : floats;  // one cache line further
}

}  // namespace sluice::kernels::host
