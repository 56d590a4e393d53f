// A rank's place in the environments of its launchers.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "collectives/rendezvous.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::collectives {
namespace {

class LaunchEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static std::string refusal() {
    return testing::refusal_of([&] { place_from_environment(); });
  }
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "SLUICE_MASTER_PORT",
                                           "SLUICE_JOB",
                                           "SLUICE_LISTENER",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "OMPI_MCA_ess_base_jobid",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_NUM_NODES",
                                           "SLURM_STEP_NODELIST",
                                           "SLURM_STEP_TASKS_PER_NODE",
                                           "SLURM_LOCALID",
                                           "SLURM_JOB_ID",
                                           "SLURM_STEP_ID"};
};

TEST_F(LaunchEnvironment, WithoutALauncherThereIsOneRank) {
  const RendezvousPlace place = place_from_environment();
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.size, 1);
  EXPECT_EQ(place.local_rank, 0);
}

TEST_F(LaunchEnvironment, IsTorchruns) {
  const std::pair<const char*, const char*> given[] = {{"RANK", "3"},
                                                       {"WORLD_SIZE", "8"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"MASTER_ADDR", "node0"},
                                                       {"MASTER_PORT", "29500"},
                                                       {"TORCHELASTIC_RUN_ID", "abc"}};
  for (const auto& [name, value] : given) set(name, value);
  RendezvousPlace place = place_from_environment();
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.address, "node0");
  EXPECT_EQ(place.port, 29500);
  EXPECT_EQ(place.job, "abc");
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 1);
  set("LOCAL_WORLD_SIZE", "4");
  EXPECT_EQ(place_from_environment().local_size, 4);
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(place_from_environment().port, 29501);
  set("SLUICE_MASTER_PORT", "1234");
  EXPECT_EQ(place_from_environment().port, 1234);
}

TEST_F(LaunchEnvironment, ErrorsNameTheWrongVariable) {
  // One after the other.
  const std::array<const char*, 3> cases[] = {
      {"RANK", "1", "WORLD_SIZE is not set"},
      {"WORLD_SIZE", "two", "WORLD_SIZE='two'"},
      {"WORLD_SIZE", "2", "MASTER_ADDR is not set"},
      {"MASTER_ADDR", "localhost", "MASTER_PORT is not set"},
      {"MASTER_PORT", "65536", "MASTER_PORT='65536'"},
      {"MASTER_PORT", "29500", ""},
      {"RANK", "2", "RANK='2'"}};
  for (const auto& [name, value, words] : cases) {
    set(name, value);
    EXPECT_TRUE(testing::mentions(refusal(), words));
    EXPECT_EQ(refusal().empty(), *words == '\0') << name;
  }
}

TEST_F(LaunchEnvironment, IsSluiceLaunchs) {
  const std::pair<const char*, const char*> given[] = {{"RANK", "0"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"LOCAL_RANK", "0"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", "12345"},
                                                       {"SLUICE_JOB", "token"},
                                                       {"SLUICE_LISTENER", "9"}};
  for (const auto& [name, value] : given) set(name, value);
  EXPECT_EQ(place_from_environment().listener, 9);
  EXPECT_EQ(place_from_environment().job, "token");
  set("RANK", "1");
  EXPECT_EQ(place_from_environment().listener, -1);
}

TEST_F(LaunchEnvironment, IsMpiruns) {
  const std::pair<const char*, const char*> given[] = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                       {"OMPI_MCA_ess_base_jobid", "2853437441"}};
  for (const auto& [name, value] : given) set(name, value);
  const RendezvousPlace place = place_from_environment();
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_EQ(place.job, "2853437441");
  EXPECT_GE(place.port, 20000);
  EXPECT_LT(place.port, 32000);
  // Equal on the other ranks of the job, and another for another job.
  set("OMPI_COMM_WORLD_RANK", "2");
  EXPECT_EQ(place_from_environment().port, place.port);
  set("OMPI_MCA_ess_base_jobid", "2853437442");
  EXPECT_NE(place_from_environment().port, place.port);
  // On several machines nobody says where rank 0 is.
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_TRUE(testing::mentions(refusal(), "mpirun -x MASTER_ADDR"));
  set("MASTER_ADDR", "node7");
  EXPECT_EQ(place_from_environment().address, "node7");
  ::unsetenv("OMPI_MCA_ess_base_jobid");
  EXPECT_TRUE(testing::mentions(refusal(), "set SLUICE_MASTER_PORT"));
}

TEST_F(LaunchEnvironment, IsSruns) {
  const std::pair<const char*, const char*> given[] = {{"SLURM_PROCID", "5"},
                                                       {"SLURM_STEP_NUM_TASKS", "8"},
                                                       {"SLURM_LOCALID", "1"},
                                                       {"SLURM_JOB_ID", "77"},
                                                       {"SLURM_STEP_ID", "0"},
                                                       {"SLURM_STEP_NUM_NODES", "2"},
                                                       {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                                       {"SLURM_STEP_NODELIST", "gpu[03-04],x"}};
  for (const auto& [name, value] : given) set(name, value);
  const RendezvousPlace place = place_from_environment();
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.address, "gpu03");
  EXPECT_EQ(place.job, "77.0");
  set("SLURM_STEP_NODELIST", "rack1-n2,rack1-n3");
  EXPECT_EQ(place_from_environment().address, "rack1-n2");
  set("SLURM_STEP_NODELIST", "n[7,9]-ib");
  EXPECT_EQ(place_from_environment().address, "n7-ib");
  // The next step of the same job may run in parallel with it.
  set("SLURM_STEP_ID", "1");
  EXPECT_NE(place_from_environment().port, place.port);
  set("SLURM_STEP_NUM_NODES", "1");
  EXPECT_EQ(place_from_environment().address, "127.0.0.1");
}

// The script of a batch job has the job's variables, but is one process.
TEST_F(LaunchEnvironment, ABatchScriptIsNoRank) {
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "8");
  set("SLURM_JOB_ID", "77");
  EXPECT_EQ(place_from_environment().size, 1);
}

}  // namespace
}  // namespace sluice::collectives
