#include "collectives/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::collectives {
namespace {

constexpr std::array kDimensions{MeshDimension::kData, MeshDimension::kPipeline,
                                 MeshDimension::kContext, MeshDimension::kExpert,
                                 MeshDimension::kTensor};

std::string refusal(std::array<int, kMeshDimensionCount> degrees, int world_size) {
  return testing::refusal_of([&] { Mesh(degrees, world_size); });
}

TEST(Mesh, TensorIsFastestAndDataSlowest) {
  const Mesh mesh({2, 3, 1, 2, 4}, 48);
  EXPECT_EQ(mesh.rank_at({0, 0, 0, 0, 1}), 1);
  EXPECT_EQ(mesh.rank_at({0, 0, 0, 1, 0}), 4);
  EXPECT_EQ(mesh.rank_at({0, 1, 0, 0, 0}), 8);
  EXPECT_EQ(mesh.rank_at({1, 0, 0, 0, 0}), 24);
  EXPECT_EQ(mesh.coordinates(47), (std::array<int, 5>{1, 2, 0, 1, 3}));
}

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  const Mesh mesh({2, 3, 5, 1, 4}, 120);
  for (int rank = 0; rank < 120; ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
}

TEST(Mesh, GroupsOfADimensionPartitionTheWorld) {
  const Mesh mesh({2, 2, 3, 1, 4}, 48);
  for (const MeshDimension dimension : kDimensions) {
    std::set<std::vector<int>> groups;
    std::size_t covered = 0;
    for (int rank = 0; rank < 48; ++rank) {
      const std::vector<int> group = mesh.group(rank, dimension);
      EXPECT_EQ(group.size(), static_cast<std::size_t>(mesh.degree(dimension)));
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
      for (const int member : group) EXPECT_EQ(mesh.group(member, dimension), group);
      if (groups.insert(group).second) covered += group.size();
    }
    EXPECT_EQ(covered, 48u) << mesh_dimension_name(dimension);
  }
}

TEST(Mesh, TensorGroupsAreConsecutiveRanks) {
  const Mesh mesh({2, 1, 1, 1, 4}, 8);
  EXPECT_EQ(mesh.group(6, MeshDimension::kTensor), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.group(6, MeshDimension::kData), (std::vector<int>{2, 6}));
}

TEST(Mesh, RefusesDegreesThatDoNotMakeTheWorld) {
  const std::string message = refusal({2, 1, 1, 1, 4}, 6);
  EXPECT_TRUE(testing::mentions(message, "data 2"));
  EXPECT_TRUE(testing::mentions(message, "tensor 4"));
  EXPECT_TRUE(testing::mentions(message, "needs 8 ranks"));
  EXPECT_TRUE(testing::mentions(message, "has 6"));
}

TEST(Mesh, RefusesADegreeBelowOne) {
  EXPECT_TRUE(testing::mentions(refusal({1, 0, 1, 1, 1}, 0), "parallel.pipeline is 0"));
  EXPECT_TRUE(testing::mentions(refusal({-1, 1, 1, 1, -1}, 1), "parallel.data is -1"));
}

TEST(Mesh, RefusesAProductThatWouldWrapAroundToTheWorldSize) {
  // 65536^4 is 0 modulo 2^64; 2^16 * 2^16 * 1 is 0 modulo 2^32.
  EXPECT_NE(refusal({65536, 65536, 65536, 65536, 1}, 0), "");
  EXPECT_NE(refusal({65536, 65536, 1, 1, 1}, 0), "");
  EXPECT_NE(refusal({2147483647, 2147483647, 2147483647, 2147483647, 2147483647}, 1), "");
}

TEST(Mesh, ARankOutsideTheWorldIsAnInternalError) {
  const Mesh mesh({2, 1, 1, 1, 1}, 2);
  EXPECT_THROW(static_cast<void>(mesh.coordinates(2)), InternalError);
  EXPECT_THROW(static_cast<void>(mesh.coordinates(-1)), InternalError);
  EXPECT_THROW(static_cast<void>(mesh.rank_at({2, 0, 0, 0, 0})), InternalError);
}

}  // namespace
}  // namespace sluice::collectives
