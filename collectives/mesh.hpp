// The process mesh: how the world's ranks are laid out over the five parallel dimensions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::collectives {

enum class MeshDimension : std::uint8_t { kData, kPipeline, kContext, kExpert, kTensor };
inline constexpr std::size_t kMeshDimensionCount = 5;
std::string_view mesh_dimension_name(MeshDimension dimension);

// Ranks are numbered with kTensor fastest and kData slowest, so tensor groups sit on one node.
class Mesh {
 public:
  // degrees by MeshDimension, each >= 1. Throws InputError where a degree is 0 or the product does
  // not equal world_size, naming both.
  Mesh(std::array<int, kMeshDimensionCount> degrees, int world_size);
  int world_size() const { return world_size_; }
  int degree(MeshDimension dimension) const {
    return degrees_[static_cast<std::size_t>(dimension)];
  }
  std::array<int, kMeshDimensionCount> coordinates(int rank) const;
  int rank_at(const std::array<int, kMeshDimensionCount>& coordinates) const;
  // The ranks that differ from `rank` in `dimension` only, ascending; `rank` among them.
  std::vector<int> group(int rank, MeshDimension dimension) const;

 private:
  std::array<int, kMeshDimensionCount> degrees_;
  int world_size_;
};

}  // namespace sluice::collectives
