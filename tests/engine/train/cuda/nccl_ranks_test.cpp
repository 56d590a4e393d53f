// Ranks on GPUs whose messages go through NCCL: a table of functions in its place, which carries
// the bytes of the simulated GPUs on their streams.
#include <array>
#include <chrono>
#include <utility>

#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/socket.hpp"
#include "tests/collectives/nccl/fake_nccl.hpp"
#include "tests/engine/train/cuda/emulated_ranks.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::train {
namespace {

using namespace testing;

const Overrides kNccl{"parallel.transport=nccl"};

class NcclRanks : public EmulatedRanks {
 protected:
  void TearDown() override { EXPECT_EQ(fake_nccl_counts().live, 0); }
  RankDevices joined_gpus(int ranks) {
    RankDevices devices = gpus();
    devices.gpu_group = [this, ranks](int rank, collectives::Communicator& host) {
      hosts_.at(static_cast<std::size_t>(rank)) = &host;
      collectives::NcclOptions options;
      options.place.rank = rank;
      options.place.size = ranks;
      options.place.port = collectives::port_of(listener_);
      options.place.listener = rank == 0 ? listener_.descriptor() : -1;
      options.gpu = "gpu " + std::to_string(rank);
      options.poll = [&host] { host.check(); };
      options.nccl = &fake_nccl();
      return [options](device::Device& device, device::Stream& stream) {
        collectives::NcclOptions own = options;
        own.device = &device;
        own.stream = &stream;
        return collectives::make_nccl_communicator(own);
      };
    };
    return devices;
  }

 protected:
  std::array<collectives::Communicator*, 4> hosts_{};  // of the job's ranks

 private:
  const collectives::Socket listener_ = collectives::listen_at("127.0.0.1", 0);
};

TEST_F(NcclRanks, GiveOneRanksBits) {
  const int groups = fake_nccl_counts().stream_groups;
  for (const auto& [count, job, how] :
       {std::tuple{2, ranks(2, 0), device_},
        std::tuple{2, ranks(2, 1), device_ + Overrides{"train.fold_groups=4"}},
        std::tuple{4, ranks(4, 3), pinned_ + Overrides{"optimizer.placement=next_forward"}},
        std::tuple{2, ranks(2, 3), stored_ + Overrides{"recompute.policy=unit"}}}) {
    const RanksRun run = expect_one_ranks_bits(job + kNccl, how, joined_gpus(count));
    // The partials of the norm alone, which lie in pinned memory, take the host's group.
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      EXPECT_GT(run.host_bytes[rank], 0u);
      EXPECT_LT(run.host_bytes[rank] * 20, run.sent_bytes[rank]);
    }
  }
  EXPECT_GT(fake_nccl_counts().stream_groups, groups);
}

// NCCL needs no pinned memory of ours. The staging of two ranks takes 2 MiB for each.
TEST_F(NcclRanks, NeedNoStagingMemory) {
  const auto pinned_bytes = [&](const std::string& transport) {
    const config::Config config =
        config_of(device_ + ranks(2, 0) + Overrides{"parallel.transport=" + transport});
    const Prepared prepared = prepare_with(config, planner::HardwareProfile{}, backend());
    return std::get<planner::Plan>(prepared.result).peak_bytes[1];
  };
  EXPECT_EQ(pinned_bytes("gloo"), pinned_bytes("nccl") + 4 * kMiB);
  EXPECT_EQ(pinned_bytes("auto"), pinned_bytes("gloo"));
}

// A rank fails while the other waits for it in NCCL. The control plane aborts the group of the
// host.
TEST_F(NcclRanks, HearOfARankThatFails) {
  const config::Config config = config_of(device_ + ranks(2, 3) + kNccl);
  PlannedSession planned(config_of(device_), {}, backend());
  const auto begin = std::chrono::steady_clock::now();
  std::array<std::string, 2> errors;
  EXPECT_ANY_THROW(train_on_ranks(
      config, planned.plan().options, kSteps,
      [&](int rank, const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        if (rank == 1) hosts_[0]->abort("rank 1 of 2 has failed");
      },
      1, joined_gpus(2)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_TRUE(mentions(errors[1], "the data cannot be read"));
  EXPECT_TRUE(mentions(errors[0], "on lane comm"));
  EXPECT_TRUE(mentions(errors[0], "rank 1 of 2 has failed"));
}

}  // namespace
}  // namespace sluice::train
