// The process mesh: the layout of the world's ranks over the five parallel dimensions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::collectives {

enum class MeshDimension : std::uint8_t { kData, kPipeline, kContext, kExpert, kTensor };
inline constexpr std::size_t kMeshDimensionCount = 5;
std::string_view mesh_dimension_name(MeshDimension dimension);

// kTensor varies fastest with the rank and kData slowest, so tensor groups lie on one node.
class Mesh {
 public:
  // degrees: one per MeshDimension, each >= 1. Throws InputError if a degree is 0, or if the
  // product differs from world_size; the message names both.
  Mesh(std::array<int, kMeshDimensionCount> degrees, int world_size);
  int world_size() const { return world_size_; }
  int degree(MeshDimension dimension) const {
    return degrees_[static_cast<std::size_t>(dimension)];
  }
  std::array<int, kMeshDimensionCount> coordinates(int rank) const;
  int rank_at(const std::array<int, kMeshDimensionCount>& coordinates) const;
  // Returns the ranks that differ from `rank` only in `dimension`, ascending, with `rank` itself.
  std::vector<int> group(int rank, MeshDimension dimension) const;

 private:
  std::array<int, kMeshDimensionCount> degrees_;
  int world_size_;
};

}  // namespace sluice::collectives
