// The contract over NCCL's stand-in: buffers lie in host memory, and the reduction runs emulated.
#include <memory>

#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/socket.hpp"
#include "device/host/host_device.hpp"
#include "tests/collectives/nccl/fake_nccl.hpp"
#include "tests/contract/communicator_contract.hpp"

namespace sluice::testing {
namespace {

struct FakeNcclRanks {
  static bool supports(int ranks) { return ranks >= 1; }
  static void run(int ranks, double call_seconds, const RankBody& body) {
    const collectives::Socket listener = collectives::listen_at("127.0.0.1", 0);
    run_in_threads(ranks, [&](int rank) {
      const auto device = device::make_host_device({});
      const auto stream = device->create_stream("comm");
      alignas(256) std::byte scratch[256];
      collectives::NcclOptions options;
      options.place.rank = rank;
      options.place.size = ranks;
      options.place.port = collectives::port_of(listener);
      options.place.listener = listener.descriptor();
      options.gpu = "gpu " + std::to_string(rank);
      options.device = device.get();
      options.stream = stream.get();
      options.scratch = scratch;
      options.start_seconds = kContractSeconds;
      options.call_seconds = call_seconds;
      options.nccl = &fake_nccl();
      const auto group = collectives::make_nccl_communicator(options);
      ContractRank own{*group, [&] { stream->synchronize(Deadline::after_seconds(30)); }};
      body(own);
    });
    EXPECT_EQ(fake_nccl_counts().live, 0);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(FakeNccl, CommunicatorContract, FakeNcclRanks);

}  // namespace
}  // namespace sluice::testing
