// Messages of stages: one thread of a rank sends while another receives, on one group.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "collectives/communicator.hpp"

namespace sluice::testing {

// Around a ring: no rank receives before its own send has begun to wait, so a group that let only
// one thread in at a time would hang until its deadline. Tags of two streams of messages do not
// mix.
inline void send_while_receiving(collectives::Communicator& group) {
  constexpr int kMessages = 20;
  constexpr std::size_t kElems = 50'000;
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  const auto value = [](int rank, int message) { return rank * 1000 + message; };
  std::jthread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<std::int32_t> data(kElems, value(group.rank(), i));
      group.send(data.data(), kElems * sizeof(std::int32_t), next, i % 2);
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    std::vector<std::int32_t> data(kElems);
    group.receive(data.data(), kElems * sizeof(std::int32_t), before, i % 2);
    EXPECT_EQ(data.front(), value(before, i));
    EXPECT_EQ(data.back(), value(before, i));
  }
}

}  // namespace sluice::testing
