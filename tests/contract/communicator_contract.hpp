// The promises of Communicator, typed over implementations. An implementation is a type with
//
//   static bool supports(int ranks);
//   static void run(int ranks, double call_seconds, const RankBody& body);
//
// run() calls body(rank) for each rank in a thread of its own and rethrows the first exception.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::testing {

using collectives::CommunicationError;
using collectives::Communicator;
using RankBytes = std::vector<std::byte>;
using Counts = std::vector<std::uint64_t>;

// One rank of a group. finish() waits for the stream, where there is one.
struct ContractRank {
  Communicator& group;
  std::function<void()> finish = [] {};

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};
using RankBody = std::function<void(ContractRank&)>;

inline constexpr double kContractSeconds = 60;
inline constexpr int kContractSizes[] = {1, 2, 3, 4, 5, 8};

// Numbers of very different sizes, so that every order of a sum has its own bits.
inline float contract_number(DType type, int rank, std::uint64_t i) {
  const auto x = static_cast<double>(i * 7919 + static_cast<std::uint64_t>(rank) * 104729 + 1);
  const double value = std::sin(x) * std::exp2(std::fmod(x, 23.0));
  return static_cast<float>(type == DType::kF16 ? value * 0x1p-12 : value);
}

template <class T>
void append_bytes(RankBytes& to, T value) {
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), from, from + sizeof value);
}
// Rounds once where the type has 16 bits.
inline void append_value(RankBytes& to, DType type, double value) {
  switch (type) {
    case DType::kF64:
      return append_bytes(to, value);
    case DType::kBF16:
      return append_bytes(to, bf16_from_float(static_cast<float>(value)).bits);
    case DType::kF16:
      return append_bytes(to, f16_from_float(static_cast<float>(value)).bits);
    case DType::kI32:
      return append_bytes(to, static_cast<std::int32_t>(value));
    default:
      return append_bytes(to, static_cast<float>(value));
  }
}
inline double value_at(const RankBytes& from, DType type, std::uint64_t i) {
  const std::byte* const at = from.data() + i * dtype_bytes(type);
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, dtype_bytes(type));
  switch (type) {
    case DType::kF64:
      return std::bit_cast<double>(bits);
    case DType::kBF16:
      return to_float(bf16{static_cast<std::uint16_t>(bits)});
    case DType::kF16:
      return to_float(f16{static_cast<std::uint16_t>(bits)});
    case DType::kI32:
      return static_cast<std::int32_t>(bits);
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  }
}

// The values of a rank, `count` from `begin` on.
inline RankBytes contract_values(DType type, int rank, std::uint64_t begin, std::uint64_t count) {
  RankBytes bytes;
  for (std::uint64_t i = begin; i < begin + count; ++i) {
    append_value(bytes, type, contract_number(type, rank, i));
  }
  return bytes;
}

// The tree by its definition: it splits at the largest power of two below the number of ranks.
// Floats are added in fp32.
inline double sum_tree(DType type, int first, int ranks, std::uint64_t i) {
  if (ranks == 1) {
    RankBytes one;
    append_value(one, type, contract_number(type, first, i));
    return value_at(one, type, 0);
  }
  int left = 1;
  while (left * 2 < ranks) left *= 2;
  const double a = sum_tree(type, first, left, i);
  const double b = sum_tree(type, first + left, ranks - left, i);
  if (type == DType::kF64 || type == DType::kI32) return a + b;
  return static_cast<float>(a) + static_cast<float>(b);
}
inline RankBytes contract_sums(DType type, DType result, int ranks, std::uint64_t begin,
                               std::uint64_t count) {
  RankBytes bytes;
  for (std::uint64_t i = begin; i < begin + count; ++i) {
    append_value(bytes, result, sum_tree(type, 0, ranks, i));
  }
  return bytes;
}

inline std::uint64_t begin_of_part(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
}
inline std::uint64_t total_of(const Counts& counts) {
  return begin_of_part(counts, static_cast<int>(counts.size()));
}

// Parts of `size` ranks: equal, uneven, and with empty ones.
inline std::vector<Counts> contract_counts(int size) {
  std::vector<Counts> all(4, Counts(static_cast<std::size_t>(size)));
  for (std::size_t rank = 0; rank < all[0].size(); ++rank) {
    all[0][rank] = 600;
    all[1][rank] = 4096 * (rank % 3) + rank;
    all[2][rank] = rank % 2 == 0 ? 0 : 17;
    all[3][rank] = rank + 1 == all[0].size() ? 1000 : 0;
  }
  return all;
}

inline constexpr DType kContractTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                                           DType::kI32};

template <class Ranks>
class CommunicatorContract : public ::testing::Test {
 protected:
  static void run(int ranks, const RankBody& body) { Ranks::run(ranks, kContractSeconds, body); }
  // The sizes of the contract that the implementation has.
  static std::vector<int> sizes(int least = 1) {
    std::vector<int> all;
    for (const int size : kContractSizes) {
      if (size >= least && Ranks::supports(size)) all.push_back(size);
    }
    return all;
  }
};
TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, GathersPartsInRankOrder) {
  for (const int size : this->sizes()) {
    this->run(size, [size](ContractRank& own) {
      ASSERT_EQ(own.size(), size);
      for (const Counts& counts : contract_counts(size)) {
        const std::uint64_t total = total_of(counts);
        RankBytes want;
        for (int rank = 0; rank < size; ++rank) {
          const RankBytes part =
              contract_values(DType::kF32, rank, 0, counts[static_cast<std::size_t>(rank)]);
          want.insert(want.end(), part.begin(), part.end());
        }
        const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())];
        const RankBytes source = contract_values(DType::kF32, own.rank(), 0, mine);
        RankBytes gathered(total * 4), in_place(total * 4);
        own.group.all_gather(source.data(), gathered.data(), counts, DType::kF32);
        std::byte* const place = in_place.data() + begin_of_part(counts, own.rank()) * 4;
        std::copy(source.begin(), source.end(), place);
        own.group.all_gather(place, in_place.data(), counts, DType::kF32);
        own.finish();
        EXPECT_EQ(gathered, want);
        EXPECT_EQ(in_place, want);
      }
    });
  }
}

TYPED_TEST_P(CommunicatorContract, ReduceScatterAddsAlongTheTree) {
  for (const int size : this->sizes()) {
    this->run(size, [size](ContractRank& own) {
      for (const DType type : kContractTypes) {
        for (const Counts& counts : contract_counts(size)) {
          const std::uint64_t total = total_of(counts);
          const std::uint64_t begin = begin_of_part(counts, own.rank());
          const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())];
          const RankBytes want = contract_sums(type, type, size, begin, mine);
          RankBytes source = contract_values(type, own.rank(), 0, total);
          const RankBytes before = source;
          RankBytes workspace(own.group.reduce_scatter_workspace_bytes(counts, type));
          RankBytes part(want.size());
          own.group.reduce_scatter(source.data(), part.data(), counts, {type, type},
                                   workspace.data());
          own.finish();
          EXPECT_EQ(part, want) << dtype_name(type);
          EXPECT_EQ(source, before);
          std::byte* const place = source.data() + begin * dtype_bytes(type);
          own.group.reduce_scatter(source.data(), place, counts, {type, type}, workspace.data());
          own.finish();
          EXPECT_TRUE(std::equal(want.begin(), want.end(), place));
        }
      }
    });
  }
}

// 16-bit parts whose sum stays in fp32, and fp32 sums that are rounded last.
TYPED_TEST_P(CommunicatorContract, ReduceScatterConvertsOnce) {
  for (const int size : this->sizes(2)) {
    this->run(size, [size](ContractRank& own) {
      const Counts counts = contract_counts(size)[1];
      const std::uint64_t begin = begin_of_part(counts, own.rank());
      const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())];
      for (const auto& [type, result] :
           {std::pair(DType::kBF16, DType::kF32), std::pair(DType::kF16, DType::kF32),
            std::pair(DType::kF32, DType::kBF16)}) {
        const RankBytes source = contract_values(type, own.rank(), 0, total_of(counts));
        const RankBytes want = contract_sums(type, result, size, begin, mine);
        RankBytes workspace(own.group.reduce_scatter_workspace_bytes(counts, type));
        RankBytes part(want.size());
        own.group.reduce_scatter(source.data(), part.data(), counts, {type, result},
                                 workspace.data());
        own.finish();
        EXPECT_EQ(part, want) << dtype_name(type) << " to " << dtype_name(result);
      }
    });
  }
}

TYPED_TEST_P(CommunicatorContract, AllReduceGivesEveryRankTheTreesBits) {
  for (const int size : this->sizes()) {
    this->run(size, [size](ContractRank& own) {
      for (const DType type : kContractTypes) {
        for (const std::uint64_t count : {0, 1, 3, 1001, 4096}) {
          RankBytes data = contract_values(type, own.rank(), 0, count);
          RankBytes workspace(own.group.all_reduce_workspace_bytes(count, type));
          own.group.all_reduce(data.data(), count, type, workspace.data());
          own.finish();
          EXPECT_EQ(data, contract_sums(type, type, size, 0, count)) << count;
        }
      }
    });
  }
}

TYPED_TEST_P(CommunicatorContract, AllToAllDeliversUnevenParts) {
  for (const int size : this->sizes()) {
    this->run(size, [size](ContractRank& own) {
      // Rank a sends rank b (2a + 3b) % 5 * 100 values, which say where they come from.
      const auto part = [](int a, int b) {
        return static_cast<std::uint64_t>((2 * a + 3 * b) % 5) * 100;
      };
      Counts to, from;
      RankBytes source, want;
      for (int peer = 0; peer < size; ++peer) {
        to.push_back(part(own.rank(), peer));
        from.push_back(part(peer, own.rank()));
        for (std::uint64_t i = 0; i < to.back(); ++i) append_bytes(source, own.rank() * 64 + peer);
        for (std::uint64_t i = 0; i < from.back(); ++i) append_bytes(want, peer * 64 + own.rank());
      }
      RankBytes received(want.size());
      own.group.all_to_all(source.data(), to, received.data(), from, DType::kI32);
      own.finish();
      EXPECT_EQ(received, want);
    });
  }
}

TYPED_TEST_P(CommunicatorContract, BroadcastsFromEachRootAndSendsAroundARing) {
  for (const int size : this->sizes()) {
    this->run(size, [size](ContractRank& own) {
      for (int root = 0; root < size; ++root) {
        RankBytes data = contract_values(DType::kF64, own.rank(), 0, 500);
        own.group.broadcast(data.data(), 500, DType::kF64, root);
        own.finish();
        EXPECT_EQ(data, contract_values(DType::kF64, root, 0, 500));
      }
      if (size == 1) return;
      const int rank = own.rank();
      int token = -1;
      if (rank == 0) {
        own.group.send(&rank, sizeof rank, 1, 7);
        own.group.receive(&token, sizeof token, size - 1, 7);
      } else {
        own.group.receive(&token, sizeof token, rank - 1, 7);
        own.group.send(&rank, sizeof rank, (rank + 1) % size, 7);
      }
      EXPECT_EQ(token, (rank + size - 1) % size);
      own.group.barrier();
      EXPECT_THROW(own.group.send(&token, 4, rank, 0), InternalError);
      EXPECT_THROW(own.group.receive(&token, 4, size, 0), InternalError);
    });
  }
}

// No rank leaves before the last has come.
TYPED_TEST_P(CommunicatorContract, ABarrierWaitsForAll) {
  for (const int size : this->sizes(2)) {
    std::atomic<int> arrived{0};
    this->run(size, [&](ContractRank& own) {
      for (int round = 1; round <= 3; ++round) {
        if (own.rank() == round % size) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++arrived;
        own.group.barrier();
        EXPECT_GE(arrived, round * size);
        own.group.barrier();
      }
    });
  }
}

TYPED_TEST_P(CommunicatorContract, CountsThePayloadExactly) {
  for (const int size : this->sizes()) {
    std::atomic<std::uint64_t> sent{0}, received{0};
    this->run(size, [&](ContractRank& own) {
      Communicator& group = own.group;
      const auto others = static_cast<std::uint64_t>(size - 1);
      collectives::ByteCounts last = group.bytes();
      const auto expect = [&](std::uint64_t want_sent, std::uint64_t want_received) {
        EXPECT_EQ(group.bytes().sent - last.sent, want_sent);
        EXPECT_EQ(group.bytes().received - last.received, want_received);
        last = group.bytes();
      };
      expect(0, 0);
      const Counts counts = contract_counts(size)[1];
      const std::uint64_t total = total_of(counts) * 2;
      const std::uint64_t mine = counts[static_cast<std::size_t>(own.rank())] * 2;
      RankBytes all(total), data(total),
          workspace(2 * total + static_cast<std::uint64_t>(size) * mine);
      group.all_gather(data.data(), all.data(), counts, DType::kBF16);
      expect(mine * others, total - mine);
      group.reduce_scatter(all.data(), data.data(), counts, {DType::kBF16, DType::kBF16},
                           workspace.data());
      expect(total - mine, mine * others);
      group.all_gather(data.data(), all.data(), 3, DType::kBF16);
      expect(6 * others, 6 * others);
      group.broadcast(data.data(), 10, DType::kBF16, 0);
      expect(own.rank() == 0 ? 20 * others : 0, own.rank() == 0 ? 0 : 20);
      group.barrier();
      expect(0, 0);
      // The part of an even division goes to all others twice: as values and as the sum.
      const std::uint64_t even = 4 * 8;
      group.all_reduce(data.data(), static_cast<std::uint64_t>(size) * 8, DType::kF32,
                       workspace.data());
      expect(2 * others * even, 2 * others * even);
      own.finish();
      sent += group.bytes().sent;
      received += group.bytes().received;
    });
    EXPECT_EQ(sent, received);
  }
}

// Rows and columns of a mesh, used at the same time as the whole group.
TYPED_TEST_P(CommunicatorContract, SubGroupsHaveTheirOwnRanksAndCounters) {
  for (const int size : this->sizes()) {
    if (size == 5) continue;
    this->run(size, [size](ContractRank& own) {
      const int width = size % 2 == 0 ? 2 : size;
      std::vector<int> row, column;
      for (int rank = 0; rank < size; ++rank) {
        if (rank / width == own.rank() / width) row.push_back(rank);
        if (rank % width == own.rank() % width) column.push_back(rank);
      }
      const auto rows = own.group.split(row), columns = own.group.split(column);
      const auto check = [&](Communicator& group, const std::vector<int>& members) {
        ASSERT_EQ(group.size(), static_cast<int>(members.size()));
        std::vector<std::int32_t> all(members.size());
        const std::int32_t mine = own.rank() + 100;
        group.all_gather(&mine, all.data(), 1, DType::kI32);
        own.finish();
        for (std::size_t i = 0; i < members.size(); ++i) EXPECT_EQ(all[i], members[i] + 100);
        EXPECT_EQ(group.bytes().sent, 4 * (members.size() - 1));
      };
      check(*rows, row);
      check(*columns, column);
      // The members split again, while other ranks may still be at the first split.
      const auto again = own.group.split(row), once_more = own.group.split(row);
      check(*once_more, row);
      check(*again, row);
      own.group.barrier();
      // A group of a group.
      if (rows->size() == 2) {
        const int self[] = {rows->rank()};
        EXPECT_EQ(rows->split(self)->size(), 1);
      }
    });
  }
}

TYPED_TEST_P(CommunicatorContract, AMissingRankEndsTheCallInATimeoutThatNamesIt) {
  if (!TypeParam::supports(3)) GTEST_SKIP() << "one rank misses none";
  const std::vector<std::pair<const char*, std::function<void(Communicator&, float*)>>> calls{
      {"all_reduce",
       [](Communicator& group, float* data) { group.all_reduce(data, 3, DType::kF32, data + 8); }},
      {"all_gather",
       [](Communicator& group, float* data) { group.all_gather(data, data + 8, 3, DType::kF32); }},
      {"reduce_scatter",
       [](Communicator& group, float* data) {
         group.reduce_scatter(data, data + 16, 3, DType::kF32, data + 24);
       }},
      {"broadcast",
       [](Communicator& group, float* data) { group.broadcast(data, 3, DType::kF32, 2); }},
      {"receive", [](Communicator& group, float* data) { group.receive(data, 12, 2, 0); }},
      {"barrier", [](Communicator& group, float*) { group.barrier(); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    std::atomic<int> waiting{2};
    TypeParam::run(3, 0.3, [&](ContractRank& own) {
      if (own.rank() == 2) {
        // There until the others have given up.
        while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      std::vector<float> numbers(64, 1.0F);
      std::string text;
      try {
        call(own.group, numbers.data());
        ADD_FAILURE() << "no error";
      } catch (const TimeoutError& error) {
        text = error.what();
      } catch (const CommunicationError& error) {
        text = error.what();  // the other one gave up first
      }
      EXPECT_TRUE(mentions(text, name));
      // The group is over, with the same reason.
      const std::string after = message_of<CommunicationError>(
          [&] { own.group.all_gather(numbers.data(), numbers.data() + 8, 3, DType::kF32); });
      EXPECT_TRUE(mentions(after, name));
      --waiting;
    });
  }
}

TYPED_TEST_P(CommunicatorContract, AnAbortEndsWaitingAndLaterCallsWithTheFirstReason) {
  for (const int size : this->sizes(2)) {
    if (size > 3) continue;
    std::atomic<int> waiting{size - 1};
    const auto began = std::chrono::steady_clock::now();
    this->run(size, [&](ContractRank& own) {
      if (own.rank() == 0) {
        while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      // Another thread of the rank, as the control plane's.
      std::jthread aborting([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        own.group.abort("rank 7 is on fire");
        own.group.abort("a later reason");
      });
      int number = 0;
      const std::string text =
          message_of<CommunicationError>([&] { own.group.broadcast(&number, 1, DType::kI32, 0); });
      aborting.join();
      const std::string after = message_of<CommunicationError>([&] { own.group.barrier(); });
      EXPECT_TRUE(mentions(after, "rank 7 is on fire"));
      if (size == 2) {
        EXPECT_TRUE(mentions(text, "rank 7 is on fire"));
      }
      --waiting;
    });
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  }
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorContract, GathersPartsInRankOrder,
                            ReduceScatterAddsAlongTheTree, ReduceScatterConvertsOnce,
                            AllReduceGivesEveryRankTheTreesBits, AllToAllDeliversUnevenParts,
                            BroadcastsFromEachRootAndSendsAroundARing, ABarrierWaitsForAll,
                            CountsThePayloadExactly, SubGroupsHaveTheirOwnRanksAndCounters,
                            AMissingRankEndsTheCallInATimeoutThatNamesIt,
                            AnAbortEndsWaitingAndLaterCallsWithTheFirstReason);

}  // namespace sluice::testing
