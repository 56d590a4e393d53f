// Cuts tensors into tiles of 64 rows and 1,024 columns for rules that need whole tensors, and lays
// out their workspace. All devices share the cut, because sums have a fixed order (optimizer.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/units.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels {

struct Tile {
  std::int64_t index = 0, down = 0, across = 0;  // its number and its position in tiles
  std::int64_t row = 0, col = 0;                 // its first row and column
  std::int64_t rows = 0, cols = 0;               // its size, at most 64 and 1,024
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
  constexpr std::int64_t across() const { return across_; }  // tiles from left to right
  constexpr std::int64_t count() const { return down_ * across_; }
  constexpr Tile operator[](std::int64_t index) const;  // numbered row by row of tiles

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

// Divides the workspace into parts that begin at multiples of 256 bytes. With null it only counts.
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

// A matrix keeps statistics of its rows and columns; a vector (one row) keeps one per element.
constexpr bool is_matrix(const TensorView& tensor) {
  return tensor.rows > 1;
}

// Adafactor's first epsilon, torch's default for fp32. Means and roots are at least this large.
inline constexpr float kAdafactorEpsilon = 0x1p-23f;
inline constexpr float kAdafactorMostRoot = 1 / kAdafactorEpsilon;
// Keeps sm3 from dividing by the root of an accumulator of zero.
inline constexpr float kSm3Epsilon = 1e-30f;
// Muon: coefficients of the Newton-Schulz quintic (Jordan 2024), and the least divisor of its norm.
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;
inline constexpr double kMuonEpsilon = 1e-7;

}  // namespace sluice::kernels
