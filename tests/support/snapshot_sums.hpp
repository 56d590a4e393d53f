// The sums of a snapshot of memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "allocator/record/memory_trace.hpp"

namespace sluice::testing {

struct SnapshotSums {
  std::uint64_t bytes = 0;       // of segments
  std::uint64_t live_bytes = 0;  // as asked
  std::uint64_t live_count = 0;
};

// Expects that blocks fill each segment without a gap, and that none holds more than its bytes.
inline SnapshotSums sums_of(std::span<const record::SnapshotSegment> segments) {
  SnapshotSums sums;
  for (const record::SnapshotSegment& segment : segments) {
    std::uint64_t address = segment.address;
    for (const record::SnapshotBlock& block : segment.blocks) {
      EXPECT_EQ(block.address, address);
      EXPECT_LE(block.requested_bytes, block.bytes);
      address += block.bytes;
      if (block.state != record::BlockState::kAllocated) continue;
      sums.live_bytes += block.requested_bytes;
      ++sums.live_count;
    }
    EXPECT_EQ(address, segment.address + segment.bytes);
    sums.bytes += segment.bytes;
  }
  return sums;
}

}  // namespace sluice::testing
