#include "kernels/host/node_teams.hpp"

#include <gtest/gtest.h>

namespace sluice::kernels::host {
namespace {

std::vector<NodeTeam> teams_of(const std::string& description, int threads) {
  const auto machine = make_synthetic_numa_machine(description);
  return share_threads(machine->nodes(), threads);
}

std::vector<int> threads_of(const std::vector<NodeTeam>& teams) {
  std::vector<int> threads;
  for (const NodeTeam& team : teams) threads.push_back(team.threads);
  return threads;
}

TEST(NodeTeams, ThreadsGoToNodesInProportionToTheirProcessingUnits) {
  EXPECT_EQ(threads_of(teams_of("node:2 core:4 pu:2", 16)), (std::vector<int>{8, 8}));
  EXPECT_EQ(threads_of(teams_of("node:2 core:4 pu:2", 5)), (std::vector<int>{3, 2}));
  EXPECT_EQ(threads_of(teams_of("node:4 core:1 pu:1", 6)), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(threads_of(teams_of("node:1 core:4 pu:1", 3)), (std::vector<int>{3}));
}

TEST(NodeTeams, NodesWithoutAThreadAreLeftOut) {
  const auto teams = teams_of("node:4 core:2 pu:1", 2);
  ASSERT_EQ(teams.size(), 2u);
  EXPECT_EQ(teams[0].node, 0u);
  EXPECT_EQ(teams[1].node, 1u);
}

TEST(NodeTeams, MemoryWithoutProcessingUnitsGetsNone) {
  const auto teams =
      teams_of("pack:2 [numa(memory=4294967296)] [numa(memory=1073741824)] core:2 pu:1", 4);
  const auto machine = make_synthetic_numa_machine(
      "pack:2 [numa(memory=4294967296)] [numa(memory=1073741824)] core:2 pu:1");
  ASSERT_EQ(teams.size(), 2u);
  for (const NodeTeam& team : teams) {
    EXPECT_EQ(team.threads, 2);
    EXPECT_FALSE(machine->nodes()[team.node].memory_only);
  }
}

TEST(NodeTeams, FewWorkersSitWhereThreadsAreManyAndNeverMoreThanThose) {
  const std::vector<NodeTeam> teams{{0, 1}, {1, 3}};
  EXPECT_EQ(share_workers(teams, 1), (std::vector<int>{0, 1}));
  EXPECT_EQ(share_workers(teams, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(share_workers(teams, 3), (std::vector<int>{1, 2}));
  EXPECT_EQ(share_workers(teams, 4), (std::vector<int>{1, 3}));
}

TEST(NodeTeams, PiecesOfUnknownNodesAreStretchesByThreads) {
  const std::vector<NodeTeam> teams{{0, 1}, {2, 3}};
  std::vector<int> of_team(2, 0);
  std::size_t before = 0;
  for (std::int64_t piece = 0; piece < 8; ++piece) {
    const std::size_t team = team_of_piece(teams, piece, 8);
    EXPECT_GE(team, before);
    before = team;
    ++of_team[team];
  }
  EXPECT_EQ(of_team, (std::vector<int>{2, 6}));
}

}  // namespace
}  // namespace sluice::kernels::host
