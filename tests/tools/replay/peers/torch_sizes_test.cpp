#include "tools/replay/peers/torch_sizes.hpp"

#include <gtest/gtest.h>

namespace sluice::replay {
namespace {

TEST(TorchRounding, FiveHundredTwelveBytesUnlessDivided) {
  record::MemoryTrace trace;
  const TorchRounding plain(trace);
  EXPECT_EQ(plain(1), 512u);
  EXPECT_EQ(plain(512), 512u);
  EXPECT_EQ(plain(513), 1024u);
  EXPECT_EQ(plain(5 * kMiB + 1), 5 * kMiB + 512);
  trace.roundup_power2_divisions = 4;
  const TorchRounding divided(trace);
  // Sizes up to 512 * 4 bytes are still rounded to 512. 3000 lies between 2048 and 4096, in steps
  // of 512; 5 MiB + 1 lies between 4 and 8 MiB, in steps of 1 MiB.
  EXPECT_EQ(divided(2048), 2048u);
  EXPECT_EQ(divided(1025), 1536u);
  EXPECT_EQ(divided(3000), 3072u);
  EXPECT_EQ(divided(5 * kMiB + 1), 6 * kMiB);
  EXPECT_EQ(divided(8 * kMiB), 8 * kMiB);
  // A table by powers of two from 1 MiB. Smaller sizes use the first entry, those from 32 GiB the
  // last.
  trace.roundup_divisions_by_power.assign(16, 0);
  trace.roundup_divisions_by_power[0] = 2;
  trace.roundup_divisions_by_power[3] = 8;
  trace.roundup_divisions_by_power[15] = 1;
  const TorchRounding table(trace);
  EXPECT_EQ(table(kMiB + 1), kMiB + kMiB / 2);
  EXPECT_EQ(table(600 * 1024), 768u * 1024);  // between 512 and 1024 KiB, one step of 256
  EXPECT_EQ(table(2 * kMiB + 1), 2 * kMiB + 512);
  EXPECT_EQ(table(8 * kMiB + 1), 9 * kMiB);
  EXPECT_EQ(table((std::uint64_t{1} << 40) + 1), (std::uint64_t{1} << 40) + 512);
}

}  // namespace
}  // namespace sluice::replay
