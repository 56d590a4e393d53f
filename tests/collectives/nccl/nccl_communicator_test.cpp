// The communicator over NCCL against a table of functions that carries bytes between threads: the
// bytes that arrive, the order of sums, and the end of calls when a rank is gone.
#include "collectives/nccl/nccl_communicator.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "collectives/socket.hpp"
#include "device/host/host_device.hpp"
#include "tests/collectives/nccl/fake_nccl.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::collectives {
namespace {

using testing::fail_next_group;
using testing::fake_nccl;
using testing::fake_nccl_counts;

using Bytes = std::vector<std::byte>;

// A rank, with a device and a stream that do nothing but be asked whether they are done.
struct Rank {
  std::unique_ptr<device::Device> device = device::make_host_device({});
  std::unique_ptr<device::Stream> stream = device->create_stream("comm");
  alignas(256) std::byte scratch[256];
  std::unique_ptr<Communicator> group;

  explicit Rank(NcclOptions options) {
    options.device = device.get();
    options.stream = stream.get();
    options.scratch = scratch;
    options.nccl = &fake_nccl();
    group = make_nccl_communicator(options);
  }
};

std::uint16_t free_port() {
  return port_of(listen_at("127.0.0.1", 0));
}

NcclOptions options_of(int rank, int size, std::uint16_t port) {
  NcclOptions options;
  options.place.rank = rank;
  options.place.size = size;
  options.place.port = port;
  options.gpu = "gpu " + std::to_string(rank);
  options.start_seconds = 20;
  options.call_seconds = 20;
  return options;
}

// body(rank) in a thread each; the first failure is thrown.
void run_ranks(int size, const std::function<void(NcclOptions&)>& change,
               const std::function<void(Rank&)>& body) {
  const std::uint16_t port = free_port();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < size; ++i) {
      threads.emplace_back([&, i] {
        try {
          NcclOptions options = options_of(i, size, port);
          change(options);
          Rank rank(options);
          body(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(i)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}
void run_ranks(int size, const std::function<void(Rank&)>& body) {
  run_ranks(
      size, [](NcclOptions&) {}, body);
}

// Numbers of very different sizes, so that every order of a sum has its own bits.
float number_of(int rank, std::uint64_t i) {
  const auto x = static_cast<double>(i * 7919 + static_cast<std::uint64_t>(rank) * 104729 + 1);
  return static_cast<float>(std::sin(x) * std::exp2(std::fmod(x, 23.0)));
}

// Rounded once.
void store(DType type, float value, Bytes& bytes, std::uint64_t i) {
  std::byte* const to = bytes.data() + i * dtype_bytes(type);
  const std::uint16_t half =
      type == DType::kBF16 ? bf16_from_float(value).bits : f16_from_float(value).bits;
  std::memcpy(to, type == DType::kF32 ? static_cast<const void*>(&value) : &half,
              dtype_bytes(type));
}
Bytes stored(DType type, int rank, std::uint64_t count) {
  Bytes bytes(count * dtype_bytes(type));
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = number_of(rank, i);
    store(type, type == DType::kF16 ? value * 0x1p-12f : value, bytes, i);
  }
  return bytes;
}
float loaded(DType type, const Bytes& bytes, std::uint64_t i) {
  const std::byte* const from = bytes.data() + i * dtype_bytes(type);
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, dtype_bytes(type));
  if (type == DType::kF32) return std::bit_cast<float>(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return type == DType::kBF16 ? to_float(bf16{half}) : to_float(f16{half});
}
// Along the tree, in fp32.
float sum_along_tree(DType type, const std::vector<Bytes>& parts, std::size_t begin,
                     std::size_t end, std::uint64_t i) {
  if (end - begin == 1) return loaded(type, parts[begin], i);
  std::size_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return sum_along_tree(type, parts, begin, begin + left, i) +
         sum_along_tree(type, parts, begin + left, end, i);
}
// Rounded once.
Bytes summed(DType type, int size, std::uint64_t count) {
  std::vector<Bytes> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(stored(type, rank, count));
  Bytes sums(count * dtype_bytes(type));
  for (std::uint64_t i = 0; i < count; ++i) {
    store(type, sum_along_tree(type, parts, 0, parts.size(), i), sums, i);
  }
  return sums;
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr std::uint64_t kCounts[] = {0, 1, 2, 3, 5, 1001, 4096};

TEST(NcclCommunicator, GathersBroadcastsAndSends) {
  for (const int size : {2, 3, 5}) {
    run_ranks(size, [size](Rank& own) {
      Communicator& group = *own.group;
      ASSERT_EQ(group.size(), size);
      const int rank = group.rank();
      std::vector<int> all(static_cast<std::size_t>(size) * 2, -1);
      const std::vector<int> mine{rank * 10, rank * 10 + 1};
      group.all_gather(mine.data(), all.data(), 2, DType::kI32);
      for (int i = 0; i < size * 2; ++i)
        EXPECT_EQ(all[static_cast<std::size_t>(i)], i / 2 * 10 + i % 2);
      for (int root = 0; root < size; ++root) {
        std::vector<double> data{rank * 1.5, rank * 2.5};
        group.broadcast(data.data(), 2, DType::kF64, root);
        EXPECT_EQ(data, (std::vector<double>{root * 1.5, root * 2.5}));
      }
      int token = -1;
      if (rank == 0) {
        group.send(&rank, sizeof rank, 1, 0);
        group.receive(&token, sizeof token, size - 1, 0);
        EXPECT_EQ(token, size - 1);
      } else {
        group.receive(&token, sizeof token, rank - 1, 0);
        EXPECT_EQ(token, rank - 1);
        group.send(&rank, sizeof rank, (rank + 1) % size, 0);
      }
      group.barrier();
      EXPECT_THROW(group.send(&token, 4, rank, 0), InternalError);
      EXPECT_THROW(group.receive(&token, 4, size, 0), InternalError);
    });
  }
  EXPECT_EQ(fake_nccl_counts().live, 0);
}

TEST(NcclCommunicator, ReducesAlongTheTreeToTheBit) {
  for (const int size : {2, 3, 4, 5}) {
    run_ranks(size, [size](Rank& own) {
      Communicator& group = *own.group;
      for (const DType type : kTypes) {
        for (const std::uint64_t count : kCounts) {
          Bytes data = stored(type, group.rank(), count);
          Bytes workspace(group.all_reduce_workspace_bytes(count, type));
          group.all_reduce(data.data(), count, type, workspace.data());
          EXPECT_EQ(data, summed(type, size, count)) << count;
        }
      }
    });
  }
}

TEST(NcclCommunicator, ScattersTheReducedValues) {
  for (const int size : {2, 3, 5}) {
    run_ranks(size, [size](Rank& own) {
      Communicator& group = *own.group;
      const auto ranks = static_cast<std::uint64_t>(size);
      const auto rank = static_cast<std::uint64_t>(group.rank());
      for (const DType type : kTypes) {
        for (const std::uint64_t count : {1, 7, 1000}) {
          Bytes source = stored(type, group.rank(), ranks * count);
          const Bytes before = source, sums = summed(type, size, ranks * count);
          const std::size_t bytes = count * dtype_bytes(type);
          const auto at = static_cast<std::ptrdiff_t>(rank * bytes);
          const Bytes want(sums.begin() + at,
                           sums.begin() + at + static_cast<std::ptrdiff_t>(bytes));
          Bytes workspace(group.reduce_scatter_workspace_bytes(count, type)), part(bytes);
          group.reduce_scatter(source.data(), part.data(), count, type, workspace.data());
          EXPECT_EQ(part, want);
          EXPECT_EQ(source, before);
          group.reduce_scatter(source.data(), source.data() + at, count, type, workspace.data());
          EXPECT_EQ(std::memcmp(source.data() + at, want.data(), bytes), 0);
        }
      }
    });
  }
}

TEST(NcclCommunicator, ARankThatStaysAwayEndsTheCallInATimeoutThatNamesIt) {
  const int aborted = fake_nccl_counts().aborted;
  run_ranks(
      3, [](NcclOptions& options) { options.call_seconds = 0.3; },
      [](Rank& own) {
        if (own.group->rank() == 2) {
          // There until the others have given up.
          std::this_thread::sleep_for(std::chrono::milliseconds(1000));
          return;
        }
        float number = 1;
        float workspace[3];
        const std::string text = testing::message_of<TimeoutError>(
            [&] { own.group->all_reduce(&number, 1, DType::kF32, workspace); });
        // Rank 0 owns the one element and waits for both; rank 1 sends and waits to get it back.
        EXPECT_TRUE(testing::mentions(text, "all_reduce"));
        EXPECT_TRUE(testing::mentions(text, "of 3"));
        const std::string after = testing::message_of<CommunicationError>(
            [&] { own.group->all_gather(&number, workspace, 1, DType::kF32); });
        EXPECT_TRUE(testing::mentions(after, "was aborted"));
        EXPECT_TRUE(testing::mentions(after, "all_reduce"));
      });
  EXPECT_EQ(fake_nccl_counts().aborted, aborted + 2);
  EXPECT_EQ(fake_nccl_counts().live, 0);
}

TEST(NcclCommunicator, AFailureThatNcclReportsIsThrownWithItsText) {
  run_ranks(2, [](Rank& own) {
    if (own.group->rank() == 1) return;
    fail_next_group(ncclRemoteError);
    int number = 0;
    const std::string text = testing::message_of<CommunicationError>(
        [&] { own.group->broadcast(&number, 1, DType::kI32, 0); });
    EXPECT_TRUE(testing::mentions(text, "broadcast failed on rank 0: remote process exited"));
  });
  EXPECT_EQ(fake_nccl_counts().live, 0);
}

// NCCL has taken a call, but the stream does not come to its end.
TEST(NcclCommunicator, QueuedCallsAreWatched) {
  const int aborted = fake_nccl_counts().aborted;
  run_ranks(
      2, [](NcclOptions& options) { options.call_seconds = 0.2; },
      [](Rank& own) {
        int number = 1;
        std::promise<void> go;
        own.stream->launch([&] { go.get_future().wait(); });
        own.group->broadcast(&number, 1, DType::kI32, 0);
        own.group->check();  // in time
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        const std::string text = testing::message_of<TimeoutError>([&] { own.group->check(); });
        EXPECT_TRUE(testing::mentions(text, "broadcast to finish"));
        go.set_value();
        own.stream->synchronize(Deadline::after_seconds(10));
      });
  EXPECT_EQ(fake_nccl_counts().aborted, aborted + 2);
}

TEST(NcclCommunicator, DestructionWithCallsUnderWayAborts) {
  const int aborted = fake_nccl_counts().aborted, destroyed = fake_nccl_counts().destroyed;
  run_ranks(2, [](Rank& own) {
    int number = 1;
    std::promise<void> go;
    own.stream->launch([&] { go.get_future().wait(); });
    own.group->broadcast(&number, 1, DType::kI32, 0);
    own.group.reset();
    go.set_value();
    own.stream->synchronize(Deadline::after_seconds(10));
  });
  EXPECT_EQ(fake_nccl_counts().aborted, aborted + 2);
  run_ranks(2, [](Rank& own) { own.group->barrier(); });
  EXPECT_EQ(fake_nccl_counts().destroyed, destroyed + 2);
}

TEST(NcclCommunicator, RanksThatShareAGpuAreRefusedBeforeNcclIsAsked) {
  const int live = fake_nccl_counts().live;
  std::atomic<int> refused{0};
  const auto text = testing::message_of<InputError>([&] {
    run_ranks(
        3, [](NcclOptions& options) { options.gpu = options.place.rank == 1 ? "a" : "b"; },
        [&](Rank&) { ++refused; });
  });
  EXPECT_TRUE(testing::mentions(text, "ranks 0 and 2 share GPU b"));
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(fake_nccl_counts().live, live);
}

TEST(NcclCommunicator, AMissingRankIsNamedByTheRendezvous) {
  NcclOptions options = options_of(0, 2, free_port());
  options.start_seconds = 0.3;
  const std::string text = testing::message_of<TimeoutError>([&] { Rank rank(options); });
  EXPECT_TRUE(testing::mentions(text, "rank 1 of 2 to join"));
}

TEST(NcclCommunicator, OneRankNeedsNeitherNcclNorTheNetwork) {
  NcclOptions options = options_of(0, 1, 0);
  Rank own(options);
  Communicator& group = *own.group;
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.all_reduce_workspace_bytes(100, DType::kF32), 0u);
  const std::vector<float> source{1, 2, 3};
  std::vector<float> gathered(3), scattered(3), reduced{4, 5};
  group.all_gather(source.data(), gathered.data(), 3, DType::kF32);
  group.reduce_scatter(source.data(), scattered.data(), 3, DType::kF32, nullptr);
  group.all_reduce(reduced.data(), 2, DType::kF32, nullptr);
  group.barrier();
  own.stream->synchronize(Deadline::after_seconds(10));
  EXPECT_EQ(gathered, source);
  EXPECT_EQ(scattered, source);
  EXPECT_EQ(reduced, (std::vector<float>{4, 5}));
  EXPECT_THROW(group.send(reduced.data(), 4, 0, 0), InternalError);
}

}  // namespace
}  // namespace sluice::collectives
