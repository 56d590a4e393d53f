#include "engine/checkpoint/weights_hash.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;

std::vector<unsigned char> data_of(std::size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 7 + i / 256);
  return data;
}

std::string hash_in_pieces(const std::vector<unsigned char>& data, std::size_t piece_bytes) {
  WeightsHasher hasher;
  hasher.begin_tensor("w", DType::kU8, Shape{static_cast<std::int64_t>(data.size())});
  for (std::size_t at = 0; at < data.size(); at += piece_bytes) {
    hasher.update(data.data() + at, std::min(piece_bytes, data.size() - at));
  }
  hasher.end_tensor();
  return hasher.finish();
}

TEST(WeightsHash, DoesNotDependOnHowTheBytesArrive) {
  const auto data = data_of(3 * kMiB + 17);
  const std::string whole = hash_in_pieces(data, data.size());
  EXPECT_EQ(hash_in_pieces(data, 4097), whole);
  EXPECT_EQ(hash_in_pieces(data, kMiB), whole);
  EXPECT_EQ(hash_in_pieces(data, kMiB + 1), whole);
}

TEST(WeightsHash, IsTheHashOfItsDefinition) {
  const auto data = data_of(kMiB + 5);
  Digest first, second, outer;
  first.update(data.data(), kMiB);
  second.update(data.data() + kMiB, 5);
  outer.update_text("w");
  outer.update_text("U8");
  outer.update_u64(1);
  outer.update_u64(kMiB + 5);
  outer.update(first.finish().bytes.data(), 16);
  outer.update(second.finish().bytes.data(), 16);
  EXPECT_EQ(hash_in_pieces(data, 1000), outer.finish().hex());
}

TEST(WeightsHash, CallsOutOfOrderAreOurOwnFault) {
  WeightsHasher hasher;
  EXPECT_THROW(hasher.update("x", 1), InternalError);
  hasher.begin_tensor("w", DType::kU8, Shape{2});
  hasher.update("x", 1);
  EXPECT_THROW(hasher.end_tensor(), InternalError);
  EXPECT_THROW(hasher.finish(), InternalError);
  EXPECT_THROW(hasher.update("xyz", 3), InternalError);
}

TEST(Digest, MatchesThePublishedValueOfNoBytes) {
  // XXH3-128 of the empty input, xxHash's own sanity table.
  EXPECT_EQ(Digest().finish().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_TRUE(is_digest_hex("99aa06d3014798d86001c324468d497f"));
  EXPECT_FALSE(is_digest_hex("99AA06d3014798d86001c324468d497f"));
  EXPECT_FALSE(is_digest_hex("99aa"));
}

}  // namespace
}  // namespace sluice::checkpoint
