// Blocks on storage, corrupted behind the back of a TaggedSpace in every way that disks know; a
// model of their bytes next to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/ledger.hpp"
#include "base/units.hpp"
#include "offload/tagged_space.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {

enum class Corruption { kBitFlip, kZeroedPage, kStale, kMisdirected, kTorn };
inline constexpr std::array<Corruption, 5> kCorruptions{
    Corruption::kBitFlip, Corruption::kZeroedPage, Corruption::kStale, Corruption::kMisdirected,
    Corruption::kTorn};

class CorruptionTrial {
 public:
  CorruptionTrial(const std::string& engine, std::uint64_t seed)
      : random_(seed),
        engine_(offload::make_storage_engine(engine, {})),
        space_(engine_.get(), ledger_, {directory_.path().string(), directory_.path().string()},
               kSpaceBytes, make_run_id()),
        tagged_(space_, RunId{seed, 1}) {
    std::uint64_t offset = 0;
    // 4,096 elements of 8-bit, 16-bit and 32-bit formats; the last crosses stripes.
    for (const std::uint64_t block : {4224u, 8192u, 16384u}) {
      Home home;
      const std::uint64_t short_block = block / 3;
      home.range = {"home " + std::to_string(block), block, round_up(offset, 4096),
                    kSpaceBytes / 4 / block * block + short_block, block};
      home.id = tagged_.add_range(home.range);
      home.now.resize(home.range.bytes);
      home.before.resize(home.range.bytes);
      offset = home.range.offset_bytes + home.range.bytes;
      homes_.push_back(std::move(home));
    }
    for (Home& home : homes_) {
      for (int version = 0; version < 2; ++version) write(home, 0, blocks(home));
    }
  }

  // Writes some blocks, reads others.
  void touch() {
    Home& home = any_home();
    const Cut cut = any_cut(home);
    write(home, cut.first, cut.last);
    expect_clean(any_home());
  }

  // Corrupts one block and reads it among others: found. Restores it: no alarm.
  void corrupt(Corruption kind) {
    Home& home = any_home();
    const std::uint64_t block = below(blocks(home));
    const Span span = damaged(home, block, kind);
    if (std::memcmp(span.bytes.data(), home.now.data() + span.begin, span.bytes.size()) == 0) {
      ++harmless_;  // the same bytes: nothing to find
      return;
    }
    store(home, span.begin, span.bytes);
    const Cut cut = cut_around(home, block);
    std::vector<std::byte> into(end_of(home, cut.last) - begin_of(home, cut.first));
    try {
      tagged_.transfer(offload::StorageOp::kRead, home.id, begin_of(home, cut.first), into.data(),
                       into.size());
      ADD_FAILURE() << "corruption " << static_cast<int>(kind) << " of block " << block << " of "
                    << home.range.name << " was not found";
    } catch (const offload::IntegrityError& error) {
      ++found_;
      EXPECT_NE(error.block.find(home.range.name), std::string::npos) << error.what();
      EXPECT_EQ(error.exit_status(), 3);
    }
    const std::span<const std::byte> right(home.now.data() + span.begin, span.bytes.size());
    store(home, span.begin, right);
    expect_clean(home);
  }

  std::uint64_t found() const { return found_; }
  std::uint64_t clean() const { return clean_; }
  std::uint64_t harmless() const { return harmless_; }

 private:
  static constexpr std::uint64_t kSpaceBytes = 12 * kMiB;  // three stripes on two files

  struct Home {
    offload::TaggedSpace::Range range;
    offload::TaggedSpace::RangeId id = 0;
    std::vector<std::byte> now, before;
  };
  struct Cut {
    std::uint64_t first, last;  // blocks [first, last)
  };
  struct Span {
    std::uint64_t begin;
    std::vector<std::byte> bytes;
  };

  static std::uint64_t blocks(const Home& home) {
    return ceil_div(home.range.bytes, home.range.block_bytes);
  }
  static std::uint64_t begin_of(const Home& home, std::uint64_t block) {
    return block * home.range.block_bytes;
  }
  static std::uint64_t end_of(const Home& home, std::uint64_t last) {
    return std::min(begin_of(home, last), home.range.bytes);
  }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Home& any_home() { return homes_[below(homes_.size())]; }
  Cut any_cut(const Home& home) { return cut_around(home, below(blocks(home))); }
  Cut cut_around(const Home& home, std::uint64_t block) {
    return {block - below(std::min<std::uint64_t>(block + 1, 4)),
            block + 1 + below(std::min<std::uint64_t>(blocks(home) - block, 4))};
  }

  void write(Home& home, std::uint64_t first, std::uint64_t last) {
    const std::uint64_t begin = begin_of(home, first);
    const std::uint64_t end = end_of(home, last);
    for (std::uint64_t at = begin; at < end; ++at) {
      home.before[at] = home.now[at];
      home.now[at] = static_cast<std::byte>(random_() >> 16);
    }
    tagged_.transfer(offload::StorageOp::kWrite, home.id, begin, home.now.data() + begin,
                     end - begin);
  }

  void expect_clean(Home& home) {
    const Cut cut = any_cut(home);
    const std::uint64_t begin = begin_of(home, cut.first);
    std::vector<std::byte> into(end_of(home, cut.last) - begin);
    tagged_.transfer(offload::StorageOp::kRead, home.id, begin, into.data(), into.size());
    EXPECT_EQ(std::memcmp(into.data(), home.now.data() + begin, into.size()), 0);
    ++clean_;
  }

  // The bytes on the disk instead, and their place. May reach into a neighbour.
  Span damaged(const Home& home, std::uint64_t block, Corruption kind) {
    std::uint64_t begin = begin_of(home, block);
    std::uint64_t end = end_of(home, block + 1);
    if (kind == Corruption::kZeroedPage) {
      // A page of the space that the block has a part in.
      const std::uint64_t page = (begin + below(end - begin)) / 4096 * 4096;
      begin = page;
      end = std::min<std::uint64_t>(page + 4096, home.range.bytes);
      return {begin, std::vector<std::byte>(end - begin)};
    }
    const auto at = [](std::uint64_t offset) { return static_cast<std::ptrdiff_t>(offset); };
    Span span{begin, {home.now.begin() + at(begin), home.now.begin() + at(end)}};
    const std::uint64_t bytes = end - begin;
    if (kind == Corruption::kBitFlip) {
      span.bytes[below(bytes)] ^= std::byte{1} << below(8);
    } else if (kind == Corruption::kStale) {
      span.bytes.assign(home.before.begin() + at(begin), home.before.begin() + at(end));
    } else if (kind == Corruption::kMisdirected) {
      const std::uint64_t other = begin_of(home, below(blocks(home) - 1));  // a whole block
      span.bytes.assign(home.now.begin() + at(other), home.now.begin() + at(other + bytes));
    } else {
      // Sectors up to a random one are new, the rest old; or the other way round.
      const std::uint64_t half = std::min(bytes - 1, 512 * (1 + below(ceil_div(bytes, 512))));
      const bool front = below(2) == 0;
      std::copy(home.before.begin() + at(front ? begin : begin + half),
                home.before.begin() + at(front ? begin + half : end),
                span.bytes.begin() + at(front ? 0 : half));
    }
    return span;
  }

  // Writes without an update of the tags.
  void store(const Home& home, std::uint64_t begin, std::span<const std::byte> bytes) {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    space_.transfer(offload::StorageOp::kWrite, home.range.offset_bytes + begin, copy.data(),
                    copy.size());
  }

  std::mt19937_64 random_;
  TempDirectory directory_;
  allocator::Ledger ledger_{{0, 0, kGiB}};
  std::unique_ptr<offload::StorageEngine> engine_;
  offload::StripedSpace space_;
  offload::TaggedSpace tagged_;
  std::vector<Home> homes_;
  std::uint64_t found_ = 0;
  std::uint64_t clean_ = 0;
  std::uint64_t harmless_ = 0;
};

// Corruptions of all kinds in turn, with writes between.
inline void expect_all_found(const std::string& engine, std::uint64_t seed, std::uint64_t count) {
  CorruptionTrial trial(engine, seed);
  for (std::uint64_t i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    if (i % 4 == 0) trial.touch();
    trial.corrupt(kCorruptions[i % kCorruptions.size()]);
  }
  EXPECT_EQ(trial.found() + trial.harmless(), count);
  EXPECT_LE(trial.harmless(), count / 50);  // a block misdirected to its own place
  EXPECT_GE(trial.clean(), trial.found());
}

}  // namespace sluice::testing
