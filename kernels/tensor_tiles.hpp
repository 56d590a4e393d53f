// How updates that look at whole tensors cut them, on every device, for sums have an order
// (optimizer.hpp): into tiles of 64 rows and 1,024 columns; and how they lay out their workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/units.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels {

struct Tile {
  std::int64_t index = 0, down = 0, across = 0;  // its number, and where it lies
  std::int64_t row = 0, col = 0;                 // its first
  std::int64_t rows = 0, cols = 0;               // at most 64 and 1,024
};

class TensorTiles {
 public:
  static constexpr std::int64_t kRows = 64, kCols = 1024;

  constexpr TensorTiles() = default;
  constexpr explicit TensorTiles(const TensorView& tensor)
      : rows_(tensor.rows),
        cols_(tensor.cols),
        down_((rows_ + kRows - 1) / kRows),
        across_((cols_ + kCols - 1) / kCols) {}

  constexpr std::int64_t down() const { return down_; }      // tiles from top to bottom
  constexpr std::int64_t across() const { return across_; }  // from left to right
  constexpr std::int64_t count() const { return down_ * across_; }
  constexpr Tile operator[](std::int64_t index) const;  // row by row of tiles

 private:
  std::int64_t rows_ = 0, cols_ = 0, down_ = 0, across_ = 0;
};

constexpr Tile TensorTiles::operator[](std::int64_t index) const {
  Tile tile;
  tile.index = index;
  tile.down = index / across_;
  tile.across = index % across_;
  tile.row = tile.down * kRows;
  tile.col = tile.across * kCols;
  tile.rows = std::min(std::int64_t{kRows}, rows_ - tile.row);
  tile.cols = std::min(std::int64_t{kCols}, cols_ - tile.col);
  return tile;
}

// Hands out the workspace in parts that begin at multiples of 256 bytes. Over null it only counts.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* workspace) : base_(static_cast<std::byte*>(workspace)) {}
  template <class T>
  T* take(std::int64_t elems) {
    return reinterpret_cast<T*>(take_bytes(static_cast<std::uint64_t>(elems) * sizeof(T)));
  }
  std::uint64_t bytes() const { return used_; }

 private:
  std::byte* take_bytes(std::uint64_t bytes) {
    std::byte* const part = base_ != nullptr ? base_ + used_ : nullptr;
    used_ += round_up(bytes, kTensorAlignmentBytes);
    return part;
  }

  std::byte* base_;
  std::uint64_t used_ = 0;
};

// A matrix keeps statistics for its rows and its columns; one row is a vector, and keeps one for
// each element.
constexpr bool is_matrix(const TensorView& tensor) {
  return tensor.rows > 1;
}

// Adafactor's first epsilon: torch's default for fp32. Means and roots are not less.
inline constexpr float kAdafactorEpsilon = 0x1p-23f;
inline constexpr float kAdafactorMostRoot = 1 / kAdafactorEpsilon;
// What keeps a root of an accumulator of sm3 that is zero from being one.
inline constexpr float kSm3Epsilon = 1e-30f;
// Muon: of the quintic that Newton-Schulz iterates (Jordan 2024), and the least norm divided by.
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;
inline constexpr double kMuonEpsilon = 1e-7;

}  // namespace sluice::kernels
