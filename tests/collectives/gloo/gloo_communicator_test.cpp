// The contract over Gloo, with ranks as threads that have a context each, over loopback.
#include "collectives/gloo/gloo_communicator.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <set>

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

// The ports at which this process listens on loopback.
std::set<std::uint16_t> listening_ports() {
  std::set<std::uint16_t> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    sockaddr_in address{};
    socklen_t length = sizeof address;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 &&
        listens != 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
      ports.insert(ntohs(address.sin_port));
    }
  }
  return ports;
}

// A stranger connects to every port of Gloo's before the ranks know each other's: once, and they
// connect anew; each time, and a sentence says so.
TEST(GlooCommunicator, AStrangerAtAPortIsNoRank) {
  for (const bool always : {false, true}) {
    const collectives::Socket listener = collectives::listen_at("127.0.0.1", 0);
    int strangers = 0, exchanges = 0;  // of rank 0
    std::atomic<int> refused{0}, connected{0};
    run_in_threads(2, [&](int rank) {
      collectives::RendezvousPlace place;
      place.rank = place.local_rank = rank;
      place.size = place.local_size = 2;
      place.port = collectives::port_of(listener);
      place.listener = listener.descriptor();
      collectives::GlooOptions options = collectives::gloo_options_at(place);
      options.start_seconds = kContractSeconds;
      const collectives::MessageExchange meet = options.exchange;
      options.exchange = [&, rank, meet](const std::string& message, Deadline deadline) {
        const bool strikes = rank == 0 && (always || exchanges < 4);
        // Rank 1 comes later: its ports are open when rank 0 has its message.
        if (rank == 0 && strikes && ++exchanges % 4 == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          for (const std::uint16_t port : listening_ports()) {
            if (port == place.port) continue;
            if (collectives::connect_to("127.0.0.1", port, Deadline::after_seconds(1))) ++strangers;
          }
        }
        return meet(message, deadline);
      };
      try {
        const auto group = collectives::make_gloo_communicator(options);
        std::int32_t sum = rank + 1, workspace[64];
        group->all_reduce(&sum, 1, DType::kI32, workspace);
        EXPECT_EQ(sum, 3);
        ++connected;
      } catch (const collectives::CommunicationError& error) {
        EXPECT_TRUE(mentions(error.what(), "another program may have connected to a port"));
        ++refused;
      }
    });
    EXPECT_GT(strangers, 0);
    EXPECT_EQ(always ? refused : connected, 2);
  }
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
