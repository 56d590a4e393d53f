#include "allocator/first_touch.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "allocator/host_mapping.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "tests/allocator/numa_recorder.hpp"

namespace sluice::allocator {
namespace {

// One node, two equal ones, eight, unequal ones, each with HBM, and one with memory of
// unknown size.
const char* const kMachines[] = {
    "node:1(memory=17179869184) core:2 pu:1",
    "node:2(memory=68719476736) core:4 pu:1",
    "node:8(memory=34359738368) core:16 pu:2",
    "pack:2 [numa(memory=8589934592)] [numa(memory=1073741824)] core:3 pu:1",
    "node:2(memory=0) core:4 pu:1",
    "pack:70 [numa(memory=4294967296)] core:1 pu:1",
};

const std::uint64_t kSizes[] = {
    4096,
    64 * kKiB,
    2 * kMiB - 4096,
    2 * kMiB,
    2 * kMiB + 4096,
    6 * kMiB + 8192,
    32 * kMiB,
    33 * kMiB,
    100 * kMiB,
    511 * kMiB,
    kGiB + 12288,
    64 * kGiB,
    200 * kGiB + 4096,
    1024 * kGiB,
    16384 * kGiB,
    (std::uint64_t{1} << 46) + 4096,
};

// All of [0, bytes) once, in order, nothing empty, no huge page in two of them.
void expect_partition(std::uint64_t bytes, std::span<const NodeShare> shares) {
  std::uint64_t end = 0;
  for (const NodeShare& share : shares) {
    ASSERT_EQ(share.offset_bytes, end);
    ASSERT_EQ(share.offset_bytes % kHugePageBytes, 0u);
    ASSERT_GT(share.bytes, 0u);
    end += share.bytes;
  }
  EXPECT_EQ(end, bytes);
}

template <typename Check>
void for_each_machine_and_size(Check check) {
  for (const char* description : kMachines) {
    const auto machine = make_synthetic_numa_machine(description);
    for (const std::uint64_t bytes : kSizes) {
      SCOPED_TRACE(std::string(description) + ", " + std::to_string(bytes) + " bytes");
      check(machine->nodes(), bytes);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(NodeShares, ASpreadGivesEachNodeItsProportion) {
  for_each_machine_and_size([](std::span<const NumaNode> nodes, std::uint64_t bytes) {
    const auto shares = share_among_nodes(bytes, nodes, NumaPlacement::kSpread, -1);
    expect_partition(bytes, shares);
    std::vector<std::uint64_t> given(nodes.size(), 0);
    for (const NodeShare& share : shares) given[share.node] += share.bytes;
    long double memory = 0;
    long double own_nodes = 0;
    for (const NumaNode& node : nodes) {
      if (node.memory_only) continue;
      memory += node.memory_bytes;
      ++own_nodes;
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const long double part = nodes[i].memory_only ? 0
                               : memory == 0        ? 1 / own_nodes
                                                    : nodes[i].memory_bytes / memory;
      // Each border is half a huge page off at most.
      EXPECT_NEAR(given[i], bytes * part, kHugePageBytes) << "node " << i;
    }
  });
}

TEST(NodeShares, UnequalNodesGetUnequalShares) {
  const std::vector<NumaNode> nodes{{.os_index = 0, .memory_bytes = 3 * kGiB, .cpus = {0}},
                                    {.os_index = 1, .memory_bytes = 0, .cpus = {1}},
                                    {.os_index = 4, .memory_bytes = 5 * kGiB, .cpus = {2}}};
  const auto shares = share_among_nodes(80 * kMiB, nodes, NumaPlacement::kSpread, -1);
  ASSERT_EQ(shares.size(), 2u);  // the second node has no memory
  EXPECT_EQ(shares[0].bytes, 30 * kMiB);
  EXPECT_EQ(shares[1].bytes, 50 * kMiB);
  EXPECT_EQ(shares[1].node, 2u);
}

TEST(NodeShares, NearTheDeviceIsItsNodeWhereItHasOne) {
  for_each_machine_and_size([](std::span<const NumaNode> nodes, std::uint64_t bytes) {
    const auto spread = share_among_nodes(bytes, nodes, NumaPlacement::kSpread, -1);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto near =
          share_among_nodes(bytes, nodes, NumaPlacement::kNearDevice, nodes[i].os_index);
      expect_partition(bytes, near);
      if (nodes[i].memory_only) {
        EXPECT_EQ(near.size(), spread.size());
      } else {
        ASSERT_EQ(near.size(), 1u);
        EXPECT_EQ(near[0].node, i);
      }
    }
    for (const int unknown : {-1, 1000}) {
      const auto near = share_among_nodes(bytes, nodes, NumaPlacement::kNearDevice, unknown);
      ASSERT_EQ(near.size(), spread.size());
      for (std::size_t i = 0; i < near.size(); ++i) EXPECT_EQ(near[i].bytes, spread[i].bytes);
    }
  });
}

TEST(NodeShares, AGivenNodeIsTakenOrRefused) {
  for_each_machine_and_size([](std::span<const NumaNode> nodes, std::uint64_t bytes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto shares = share_among_nodes(bytes, nodes, NumaPlacement::kNode, nodes[i].os_index);
      ASSERT_EQ(shares.size(), 1u);
      EXPECT_EQ(shares[0].node, i);
      EXPECT_EQ(shares[0].bytes, bytes);
    }
    EXPECT_THROW(share_among_nodes(bytes, nodes, NumaPlacement::kNode, -1), InputError);
    EXPECT_THROW(share_among_nodes(0, nodes, NumaPlacement::kNode, 1000), InputError);
    EXPECT_TRUE(share_among_nodes(0, nodes, NumaPlacement::kSpread, -1).empty());
  });
}

TEST(TouchPieces, StayInTheirShareAndAreNoMoreThanHelp) {
  for_each_machine_and_size([](std::span<const NumaNode> nodes, std::uint64_t bytes) {
    const auto shares = share_among_nodes(bytes, nodes, NumaPlacement::kSpread, -1);
    const auto pieces = cut_for_threads(shares, nodes);
    expect_partition(bytes, pieces);
    EXPECT_LE(pieces.size(), std::max(kMaxTouchThreads, shares.size()));
    std::map<std::size_t, std::size_t> threads;
    for (const TouchPiece& piece : pieces) {
      ++threads[piece.node];
      const auto share = std::find_if(shares.begin(), shares.end(), [&](const NodeShare& one) {
        return piece.offset_bytes >= one.offset_bytes &&
               piece.offset_bytes + piece.bytes <= one.offset_bytes + one.bytes;
      });
      ASSERT_NE(share, shares.end());
      EXPECT_EQ(piece.node, share->node);
    }
    for (const NodeShare& share : shares) {
      const std::size_t most = std::min(nodes[share.node].cpus.size(), kMaxTouchThreadsPerNode);
      EXPECT_LE(threads[share.node], most);
      EXPECT_LE(threads[share.node], std::max<std::uint64_t>(1, share.bytes / kLeastTouchBytes));
      if (shares.size() <= 4 && share.bytes >= kGiB) {
        EXPECT_EQ(threads[share.node], most);
      }
    }
  });
}

TEST(TouchPieces, MemoryOnlyNodesAreTouchedFromAnywhere) {
  const std::vector<NumaNode> nodes{
      {.os_index = 0, .memory_bytes = kGiB, .cpus = {0, 1}},
      {.os_index = 1, .memory_bytes = kGiB, .cpus = {2, 3}},
      {.os_index = 2, .memory_bytes = kGiB, .memory_only = true, .cpus = {}}};
  const NodeShare share{0, kGiB, 2};
  EXPECT_EQ(cut_for_threads({&share, 1}, nodes).size(), 4u);
}

bool all_resident(const HostMapping& mapping) {
  return resident_pages(mapping.data(), mapping.bytes()) == mapping.bytes() / kHostPageBytes;
}

TEST(FirstTouch, EveryShareIsBoundBeforeAPageOfItIsThere) {
  const NumaRecorder machine("node:2(memory=68719476736) core:4 pu:1");
  const HostMapping mapping(160 * kMiB + 4096);
  const auto shares =
      share_among_nodes(mapping.bytes(), machine.nodes(), NumaPlacement::kSpread, -1);
  first_touch(mapping.data(), shares, machine);
  EXPECT_TRUE(all_resident(mapping));
  const auto bound = machine.bound_memory();
  ASSERT_EQ(bound.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(bound[i].data, mapping.data() + shares[i].offset_bytes);
    EXPECT_EQ(bound[i].bytes, shares[i].bytes);
    EXPECT_EQ(bound[i].node, i);
    EXPECT_EQ(bound[i].resident_pages, 0u);
  }
  // 80 MiB per node are two threads each, none of them the caller.
  const auto threads = machine.bound_threads();
  EXPECT_EQ(threads.size(), 4u);
  for (const auto& [thread, node] : threads) EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(std::count_if(threads.begin(), threads.end(), [](auto& t) { return t.second == 1; }),
            2);
}

TEST(FirstTouch, OneNodeNeedsNoBinding) {
  const NumaRecorder machine("node:1(memory=68719476736) core:4 pu:1");
  const HostMapping mapping(160 * kMiB);
  const NodeShare share{0, mapping.bytes(), 0};
  first_touch(mapping.data(), {&share, 1}, machine);
  EXPECT_TRUE(all_resident(mapping));
  EXPECT_TRUE(machine.bound_memory().empty());
  EXPECT_TRUE(machine.bound_threads().empty());
}

TEST(FirstTouch, ARefusedBindingIsOneWarning) {
  NumaRecorder machine("node:4(memory=68719476736) core:4 pu:1");
  machine.refuse(EPERM);
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kWarning) warnings.push_back(line);
  });
  const HostMapping mapping(64 * kMiB);
  first_touch(mapping.data(),
              share_among_nodes(mapping.bytes(), machine.nodes(), NumaPlacement::kSpread, -1),
              machine);
  set_log_sink({});
  EXPECT_TRUE(all_resident(mapping));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("CAP_SYS_NICE"), std::string::npos) << warnings[0];
  EXPECT_EQ(machine.bound_threads().size(), 4u);  // the bindings place the pages then
}

TEST(FirstTouch, WithoutThreadsTheCallerTouches) {
  const NumaRecorder machine("node:2(memory=68719476736) core:4 pu:1");
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  // No address space has room for such a stack: every thread fails to start.
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 60), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const HostMapping mapping(160 * kMiB);
  first_touch(mapping.data(),
              share_among_nodes(mapping.bytes(), machine.nodes(), NumaPlacement::kSpread, -1),
              machine);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_TRUE(all_resident(mapping));
  EXPECT_TRUE(machine.bound_threads().empty());
  ASSERT_EQ(pthread_attr_destroy(&huge), 0);
  ASSERT_EQ(pthread_attr_destroy(&before), 0);
}

TEST(FirstTouch, PagesThatCannotBeHadAreAnError) {
  const NumaRecorder machine("node:2(memory=68719476736) core:4 pu:1");
  const HostMapping mapping(160 * kMiB);
  // A page that is missing stands for one that the kernel cannot give: ENOMEM either way.
  ASSERT_EQ(munmap(mapping.data() + 100 * kMiB, kHostPageBytes), 0);
  EXPECT_THROW(
      first_touch(mapping.data(),
                  share_among_nodes(mapping.bytes(), machine.nodes(), NumaPlacement::kSpread, -1),
                  machine),
      DeviceError);
}

}  // namespace
}  // namespace sluice::allocator
