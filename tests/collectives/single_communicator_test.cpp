#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/error.hpp"
#include "collectives/communicator.hpp"

namespace sluice::collectives {
namespace {

TEST(SingleCommunicator, IsRankZeroOfOne) {
  const auto group = make_single_communicator();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  group->barrier();
}

// Exactly count * dtype_bytes arrive, no byte beyond.
TEST(SingleCommunicator, GatherAndScatterCopyTheirOneShare) {
  const auto group = make_single_communicator();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8, DType::kF64}) {
    const std::uint64_t count = 5;
    const std::size_t bytes = count * dtype_bytes(dtype);
    std::vector<unsigned char> source(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<unsigned char>(i + 1);
    std::vector<unsigned char> expected = source;
    expected.push_back(0xee);
    std::vector<unsigned char> gathered(bytes + 1, 0xee);
    group->all_gather(source.data(), gathered.data(), count, dtype);
    EXPECT_EQ(gathered, expected);
    std::vector<unsigned char> scattered(bytes + 1, 0xee);
    group->reduce_scatter(source.data(), scattered.data(), count, dtype, nullptr);
    EXPECT_EQ(scattered, expected);
  }
}

TEST(SingleCommunicator, ReductionsAndBroadcastsInPlaceChangeNothing) {
  const auto group = make_single_communicator();
  // A signed zero and a NaN keep their bits: nothing is added.
  std::array<std::uint32_t, 4> values{0x80000000u, 0x7fc12345u, 0x00000001u, 0x3f800000u};
  const auto before = values;
  group->all_reduce(values.data(), values.size(), DType::kF32, nullptr);
  group->broadcast(values.data(), values.size(), DType::kF32, 0);
  group->all_gather(values.data(), values.data(), values.size(), DType::kF32);
  group->reduce_scatter(values.data(), values.data(), values.size(), DType::kF32, nullptr);
  EXPECT_EQ(group->reduce_scatter_workspace_bytes(values.size(), DType::kF32), 0u);
  EXPECT_EQ(group->all_reduce_workspace_bytes(values.size(), DType::kF32), 0u);
  EXPECT_EQ(values, before);
}

TEST(SingleCommunicator, NothingCanMatchASendToItself) {
  const auto group = make_single_communicator();
  int value = 0;
  EXPECT_THROW(group->send(&value, sizeof(value), 0, 7), InternalError);
  EXPECT_THROW(group->receive(&value, sizeof(value), 0, 7), InternalError);
  EXPECT_THROW(group->broadcast(&value, 1, DType::kI32, 1), InternalError);
}

}  // namespace
}  // namespace sluice::collectives
