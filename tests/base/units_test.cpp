#include "base/units.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/rng.hpp"
#include "tests/support/parts_of.hpp"

namespace sluice {
namespace {

TEST(ParseBytes, ReadsEveryUnit) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("512B"), 512u);
  EXPECT_EQ(parse_bytes("1KiB"), 1024u);
  EXPECT_EQ(parse_bytes("64MiB"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("64 MiB"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("1.5GiB"), kGiB + kGiB / 2);
  EXPECT_EQ(parse_bytes("2TiB"), 2048 * kGiB);
  EXPECT_EQ(parse_bytes("1KB"), 1'000u);
  EXPECT_EQ(parse_bytes("3MB"), 3'000'000u);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("0.5TB"), 500'000'000'000u);
  EXPECT_EQ(parse_bytes("0.3KiB"), 307u);  // 307.2: a part of a byte is cut off
}

TEST(ParseBytes, RefusesTextThatIsNoByteCount) {
  // The first is empty.
  const std::string hostile =
      "| |-1|+1|-1MiB|MiB|.|.5MiB|1.|1.MiB|1..5MiB|1.5|1.5B|1e3|0x10|1,000|1 | 1|1  MiB|1MiB "
      "|1mib|1MIB|1M|1MiBs|1MiB1|nan|inf|1\n|1.5.5GiB|١MiB|1.1234567890123456789GiB|--5|1_000"
      "|1.-5GiB";
  for (const std::string& text : testing::parts_of(hostile, '|')) {
    EXPECT_FALSE(parse_bytes(text)) << '"' << text << '"';
  }
  EXPECT_FALSE(parse_bytes(std::string_view("1\0", 2)));
}

TEST(ParseBytes, RefusesCountsAboveTheLargest) {
  EXPECT_EQ(parse_bytes("9223372036854775808"), std::uint64_t{1} << 63);
  EXPECT_FALSE(parse_bytes("9223372036854775809"));
  EXPECT_FALSE(parse_bytes("18446744073709551616"));
  EXPECT_FALSE(parse_bytes("18446744073709551617"));  // 1 modulo 2^64
  EXPECT_FALSE(parse_bytes("99999999999999999999999999999999999999999999"));
  EXPECT_EQ(parse_bytes("8388608TiB"), std::uint64_t{1} << 63);
  EXPECT_FALSE(parse_bytes("8388609TiB"));
  EXPECT_FALSE(parse_bytes("16777217TiB"));  // 1 TiB modulo 2^64
  EXPECT_FALSE(parse_bytes(std::string(1'000'000, '9')));
}

TEST(FormatBytesExact, IsReadBackToTheSameValue) {
  EXPECT_EQ(format_bytes_exact(0), "0");
  EXPECT_EQ(format_bytes_exact(64 * kMiB), "64MiB");
  EXPECT_EQ(format_bytes_exact(3 * kGiB / 2), "1536MiB");
  EXPECT_EQ(format_bytes_exact(1000), "1000B");
  const CounterRng rng(1, stream_of("units"));
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    // All magnitudes, and round as well as odd values.
    const std::uint64_t value = (rng.bits(3 * i) >> (1 + rng.below(3 * i + 1, 63)))
                                << rng.below(3 * i + 2, 20);
    if (value > std::uint64_t{1} << 63) continue;
    ASSERT_EQ(parse_bytes(format_bytes_exact(value)), value);
  }
}

TEST(FormatBytes, KeepsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1568 * kMiB), "1.53 GiB");
  EXPECT_EQ(format_bytes(24 * kGiB), "24.0 GiB");
  EXPECT_EQ(format_bytes(512 * kMiB), "512 MiB");
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16777216 TiB");
}

TEST(FormatSeconds, PicksTheUnit) {
  EXPECT_EQ(format_seconds(3725), "1h02m");
  EXPECT_EQ(format_seconds(200), "3m20s");
  EXPECT_EQ(format_seconds(65), "1m05s");
  EXPECT_EQ(format_seconds(12.5), "12.5 s");
  EXPECT_EQ(format_seconds(0.0031), "3.10 ms");
  EXPECT_EQ(format_seconds(42e-6), "42.0 us");
  EXPECT_EQ(format_seconds(7e-9), "7.00 ns");
  EXPECT_EQ(format_seconds(0), "0.00 ns");
  EXPECT_EQ(format_seconds(59.99), "1m00s");
  EXPECT_EQ(format_seconds(3599.9), "1h00m");
  EXPECT_EQ(format_seconds(-2), "-2.00 s");
  EXPECT_EQ(format_seconds(std::numeric_limits<double>::infinity()), "forever");
  EXPECT_EQ(format_seconds(std::numeric_limits<double>::quiet_NaN()), "unknown");
}

}  // namespace
}  // namespace sluice
