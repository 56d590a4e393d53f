// The contract over Gloo, with ranks as threads that have a context each, over loopback.
#include "collectives/gloo/gloo_communicator.hpp"

#include "collectives/socket.hpp"
#include "tests/contract/communicator_contract.hpp"
#include "tests/support/duplex_messages.hpp"

namespace sluice::testing {
namespace {

struct GlooRanks {
  static bool supports(int ranks) { return ranks >= 1; }
  static void run(int ranks, double call_seconds, const RankBody& body) {
    const collectives::Socket listener = collectives::listen_at("127.0.0.1", 0);
    run_in_threads(ranks, [&](int rank) {
      collectives::RendezvousPlace place;
      place.rank = rank;
      place.size = ranks;
      place.local_rank = rank;
      place.local_size = ranks;
      place.port = collectives::port_of(listener);
      place.listener = listener.descriptor();
      place.job = "contract";
      collectives::GlooOptions options = collectives::gloo_options_at(place);
      options.start_seconds = kContractSeconds;
      options.call_seconds = call_seconds;
      const auto group = collectives::make_gloo_communicator(options);
      ContractRank own{*group};
      body(own);
    });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gloo, CommunicatorContract, GlooRanks);

// Stages of a pipeline send and receive on lanes of their own.
TEST(GlooCommunicator, OneThreadSendsWhileAnotherReceives) {
  for (const int size : {2, 3}) {
    GlooRanks::run(size, 30, [](ContractRank& own) { send_while_receiving(own.group); });
  }
}

// Both threads of rank 0 wait for a rank that does nothing.
TEST(GlooCommunicator, AnAbortEndsASendAndAReceiveThatWait) {
  const auto began = std::chrono::steady_clock::now();
  GlooRanks::run(2, 60, [](ContractRank& own) {
    if (own.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::int32_t token = 0;
    // More than the sockets hold.
    const std::vector<std::byte> much(std::size_t{64} << 20);
    std::jthread sender([&] {
      EXPECT_THROW(own.group.send(much.data(), much.size(), 1, 0), collectives::CommunicationError);
    });
    std::jthread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      own.group.abort("the test says so");
    });
    EXPECT_THROW(own.group.receive(&token, sizeof token, 1, 1), collectives::CommunicationError);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

// Many buffers of many sizes at once, larger than the sockets hold.
TEST(GlooCommunicator, CarriesMegabytesInBothDirections) {
  GlooRanks::run(3, kContractSeconds, [](ContractRank& own) {
    const Counts counts{3'000'001, 0, 2'000'000};
    std::vector<std::uint8_t> all(total_of(counts));
    const std::uint64_t begin = begin_of_part(counts, own.rank());
    const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())];
    for (std::uint64_t i = begin; i < begin + mine; ++i) all[i] = static_cast<std::uint8_t>(i * 31);
    own.group.all_gather(all.data() + begin, all.data(), counts, DType::kU8);
    for (std::uint64_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], static_cast<std::uint8_t>(i * 31)) << i;
    }
  });
}

// Calls that disagree never read each other's bytes.
TEST(GlooCommunicator, CallsOfOtherSizesDoNotMatch) {
  GlooRanks::run(2, 0.3, [](ContractRank& own) {
    RankBytes data(64);
    EXPECT_THROW(own.group.broadcast(data.data(), own.rank() == 0 ? 16 : 8, DType::kF32, 0), Error);
    EXPECT_EQ(data, RankBytes(64));
  });
}

TEST(GlooCommunicator, AnAddressOfAnotherMachineIsRefused) {
  collectives::GlooOptions options;
  options.size = 2;
  options.address = "192.0.2.1";  // RFC 5737: documentation
  options.exchange = [](const std::string& message, Deadline) {
    return std::vector<std::string>{message, message};
  };
  const std::string text =
      message_of<CommunicationError>([&] { collectives::make_gloo_communicator(options); });
  EXPECT_TRUE(mentions(text, "192.0.2.1"));
}

}  // namespace
}  // namespace sluice::testing
