// The mesh as mixed-radix numbers: a rank's coordinates are its digits, with kTensor as the last.
#include "collectives/mesh.hpp"

#include <string>

#include "base/error.hpp"

namespace sluice::collectives {

std::string_view mesh_dimension_name(MeshDimension dimension) {
  constexpr std::array<std::string_view, kMeshDimensionCount> names{"data", "pipeline", "context",
                                                                    "expert", "tensor"};
  return names[static_cast<std::size_t>(dimension)];
}

Mesh::Mesh(std::array<int, kMeshDimensionCount> degrees, int world_size)
    : degrees_(degrees), world_size_(world_size) {
  std::string layout;
  // Stops growing above INT32_MAX, so it cannot overflow: factors are below 2^31.
  std::int64_t product = 1;
  for (std::size_t d = 0; d < kMeshDimensionCount; ++d) {
    const std::string name(mesh_dimension_name(static_cast<MeshDimension>(d)));
    if (degrees[d] < 1) {
      throw InputError("parallel." + name + " is " + std::to_string(degrees[d]) +
                       "; a degree is at least 1 (world of " + std::to_string(world_size) +
                       " ranks)");
    }
    layout += (d == 0 ? "" : " x ") + name + " " + std::to_string(degrees[d]);
    if (product <= INT32_MAX) product *= degrees[d];
  }
  if (product != world_size) {
    const std::string count = product > INT32_MAX ? "too many" : std::to_string(product);
    throw InputError("the mesh " + layout + " needs " + count + " ranks, but the world has " +
                     std::to_string(world_size));
  }
}

std::array<int, kMeshDimensionCount> Mesh::coordinates(int rank) const {
  SLUICE_CHECK(rank >= 0 && rank < world_size_);
  std::array<int, kMeshDimensionCount> result{};
  for (std::size_t d = kMeshDimensionCount; d-- > 0;) {
    result[d] = rank % degrees_[d];
    rank /= degrees_[d];
  }
  return result;
}

int Mesh::rank_at(const std::array<int, kMeshDimensionCount>& coordinates) const {
  int rank = 0;
  for (std::size_t d = 0; d < kMeshDimensionCount; ++d) {
    SLUICE_CHECK(coordinates[d] >= 0 && coordinates[d] < degrees_[d]);
    rank = rank * degrees_[d] + coordinates[d];
  }
  return rank;
}

std::vector<int> Mesh::group(int rank, MeshDimension dimension) const {
  std::array<int, kMeshDimensionCount> position = coordinates(rank);
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(degree(dimension)));
  for (int i = 0; i < degree(dimension); ++i) {
    position[static_cast<std::size_t>(dimension)] = i;
    ranks.push_back(rank_at(position));
  }
  return ranks;
}

}  // namespace sluice::collectives
