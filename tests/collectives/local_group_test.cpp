// The contract over threads of one process and over a single rank, and what only threads promise.
#include "collectives/local/local_group.hpp"

#include "tests/contract/communicator_contract.hpp"
#include "tests/support/duplex_messages.hpp"

namespace sluice::testing {
namespace {

struct LocalRanks {
  static bool supports(int ranks) { return ranks >= 1; }
  static void run(int ranks, double call_seconds, const RankBody& body) {
    auto group = collectives::make_local_group(ranks, call_seconds);
    run_in_threads(ranks, [&](int rank) {
      auto& place = group[static_cast<std::size_t>(rank)];
      const auto communicator = std::move(place);
      ContractRank own{*communicator};
      body(own);
    });
  }
};
struct SingleRank {
  static bool supports(int ranks) { return ranks == 1; }
  static void run(int /*ranks*/, double /*call_seconds*/, const RankBody& body) {
    const auto group = collectives::make_single_communicator();
    ContractRank own{*group};
    body(own);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Local, CommunicatorContract, LocalRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Single, CommunicatorContract, SingleRank);

// Stages of a pipeline send and receive on lanes of their own.
TEST(LocalGroup, OneThreadSendsWhileAnotherReceives) {
  for (const int size : {2, 3}) {
    LocalRanks::run(size, 30, [](ContractRank& own) { send_while_receiving(own.group); });
  }
}

// As if its process had died: nobody waits for the deadline.
TEST(LocalGroup, ARankThatLeavesIsNamedAtOnce) {
  LocalRanks::run(3, kContractSeconds, [](ContractRank& own) {
    if (own.rank() == 1) return;
    int number = 0;
    try {
      own.group.broadcast(&number, 1, DType::kI32, 1);
      FAIL();
    } catch (const CommunicationError& error) {
      EXPECT_TRUE(mentions(error.what(), "rank 1 of 3 has left the group"));
    }
  });
}

TEST(LocalGroup, CallsThatDisagreeAboutSizesAreABug) {
  LocalRanks::run(2, kContractSeconds, [](ContractRank& own) {
    RankBytes data(64);
    std::string text;
    try {
      own.group.broadcast(data.data(), own.rank() == 0 ? 16 : 8, DType::kF32, 0);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_TRUE(
        mentions(text, "rank 0 of 2 sends 64 bytes in broadcast, but rank 1 of 2 awaits 32"));
  });
}

TEST(LocalGroup, MessagesMatchByTag) {
  LocalRanks::run(2, kContractSeconds, [](ContractRank& own) {
    int first = 11, second = 22;
    if (own.rank() == 0) {
      // A send waits for its receive, so the second message needs a thread of its own.
      std::jthread early([&] { own.group.send(&first, sizeof first, 1, 1); });
      own.group.send(&second, sizeof second, 1, 2);
      return;
    }
    int received = 0;
    own.group.receive(&received, sizeof received, 0, 2);
    EXPECT_EQ(received, 22);
    own.group.receive(&received, sizeof received, 0, 1);
    EXPECT_EQ(received, 11);
  });
}

// Random sequences of collectives against the sums and copies that they mean.
TEST(LocalGroup, RandomSequencesKeepEveryRanksDataEqual) {
  for (const int size : {2, 3, 5}) {
    LocalRanks::run(size, kContractSeconds, [size](ContractRank& own) {
      std::uint64_t state = 12345;
      const auto next = [&](std::uint64_t below) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        return (state >> 33) % below;
      };
      for (int round = 0; round < 200; ++round) {
        Counts counts;
        for (int rank = 0; rank < size; ++rank) counts.push_back(next(4) * next(50));
        const std::uint64_t total = total_of(counts);
        const std::uint64_t begin = begin_of_part(counts, own.rank());
        const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())];
        const RankBytes source = contract_values(DType::kF32, own.rank(), 0, total);
        RankBytes workspace(own.group.reduce_scatter_workspace_bytes(counts, DType::kF32));
        RankBytes sum(mine * 4), all(total * 4);
        own.group.reduce_scatter(source.data(), sum.data(), counts, {}, workspace.data());
        ASSERT_EQ(sum, contract_sums(DType::kF32, DType::kF32, size, begin, mine));
        own.group.all_gather(sum.data(), all.data(), counts, DType::kF32);
        ASSERT_EQ(all, contract_sums(DType::kF32, DType::kF32, size, 0, total));
      }
    });
  }
}

}  // namespace
}  // namespace sluice::testing
