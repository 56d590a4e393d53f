#include "offload/tagged_space.hpp"

#include <gtest/gtest.h>

#include <mutex>

#include "base/log.hpp"
#include "tests/support/corruption_trial.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::testing {
namespace {

constexpr std::uint64_t kBlock = 4224;
constexpr std::uint64_t kBytes = 5 * kBlock + 100;
constexpr RunId kRun{1, 2};

// A tagged space with one range, on an engine that fails by a plan.
class TaggedSpaceTest : public ::testing::Test {
 protected:
  explicit TaggedSpaceTest() { make({}); }

  void make(const offload::FaultPlan& plan) {
    tagged_.reset();
    space_.reset();
    engine_ = offload::make_faulty_engine(offload::make_storage_engine("posix", {}), plan);
    space_ = std::make_unique<offload::StripedSpace>(
        engine_.get(), ledger_, std::vector<std::string>{directory_.path().string()}, kMiB, kRun);
    tagged_ = std::make_unique<offload::TaggedSpace>(*space_, kRun);
    id_ = tagged_->add_range(range());
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i * 7 + i / 9);
  }
  static offload::TaggedSpace::Range range() {
    return {"moment1 of unit 3", 77, 8192, kBytes, kBlock};
  }
  void write() {
    tagged_->transfer(offload::StorageOp::kWrite, id_, 0, data_.data(), data_.size());
  }
  std::vector<std::byte> read() {
    std::vector<std::byte> into(kBytes);
    tagged_->transfer(offload::StorageOp::kRead, id_, 0, into.data(), into.size());
    return into;
  }

  TempDirectory directory_;
  allocator::Ledger ledger_{{0, 0, kGiB}};
  std::unique_ptr<offload::StorageEngine> engine_;
  std::unique_ptr<offload::StripedSpace> space_;
  std::unique_ptr<offload::TaggedSpace> tagged_;
  offload::TaggedSpace::RangeId id_ = 0;
  std::vector<std::byte> data_{kBytes};
};

TEST_F(TaggedSpaceTest, EveryCorruptionIsFoundAndNoCleanReadIsDoubted) {
  expect_all_found("posix", 11, 300);
  if (offload::io_uring_unavailable_reason().empty()) expect_all_found("io_uring", 12, 300);
}

TEST_F(TaggedSpaceTest, CountsVersionsAndHashedBytes) {
  write();
  write();
  tagged_->transfer(offload::StorageOp::kWrite, id_, kBlock, data_.data(), kBlock);
  EXPECT_EQ(tagged_->tags(id_).size(), 6u);
  EXPECT_EQ(tagged_->tags(id_)[0].version, 2u);
  EXPECT_EQ(tagged_->tags(id_)[1].version, 3u);
  EXPECT_EQ(tagged_->counters().hashed_bytes, 2 * kBytes + kBlock);
  EXPECT_EQ(tagged_->counters().reread_blocks, 0u);
}

TEST_F(TaggedSpaceTest, ABlockThatWasNeverWrittenIsNotRead) {
  tagged_->transfer(offload::StorageOp::kWrite, id_, 0, data_.data(), 2 * kBlock);
  const std::string message = message_of<InternalError>([&] { read(); });
  EXPECT_TRUE(mentions(message, "block 2 of moment1 of unit 3"));
}

TEST_F(TaggedSpaceTest, ATransferThatCutsABlockIsRefused) {
  const auto move = [&](std::uint64_t offset, std::uint64_t bytes) {
    tagged_->transfer(offload::StorageOp::kWrite, id_, offset, data_.data(), bytes);
  };
  EXPECT_THROW(move(1, kBlock), InternalError);
  EXPECT_THROW(move(0, kBlock - 1), InternalError);
  EXPECT_THROW(move(5 * kBlock, 101), InternalError);
  EXPECT_NO_THROW(move(5 * kBlock, 100));  // the short one at the end
}

TEST_F(TaggedSpaceTest, ARangeKeepsItsTagsWhenItIsNamedAgain) {
  write();
  EXPECT_EQ(tagged_->add_range(range()), id_);
  EXPECT_EQ(read(), data_);
  offload::TaggedSpace::Range other = range();
  other.offset_bytes = 512 * 1024;
  EXPECT_NE(tagged_->add_range(other), id_);
  other.block_bytes = offload::TaggedSpace::kMostBlockBytes + 1;
  EXPECT_THROW(tagged_->add_range(other), InternalError);
  other = range();
  other.offset_bytes = kMiB - 1;
  EXPECT_THROW(tagged_->add_range(other), InternalError);
}

// A log of the state must keep these facts to verify it in another process.
TEST_F(TaggedSpaceTest, TagsAreAFunctionOfRunRangeBlockVersionAndBytes) {
  write();
  const std::span<const offload::BlockTag> tags = tagged_->tags(id_);
  const std::uint64_t step = range().block_bytes;
  for (std::uint64_t block = 0; block < tags.size(); ++block) {
    const std::byte* const data = data_.data() + block * step;
    const std::uint64_t bytes = std::min(step, kBytes - block * step);
    EXPECT_EQ(offload::tag_of(kRun, range().key, block, 1, data, bytes), tags[block]);
    EXPECT_NE(offload::tag_of(RunId{1, 3}, range().key, block, 1, data, bytes), tags[block]);
    EXPECT_NE(offload::tag_of(kRun, range().key + 1, block, 1, data, bytes), tags[block]);
    EXPECT_NE(offload::tag_of(kRun, range().key, block + 1, 1, data, bytes), tags[block]);
    EXPECT_NE(offload::tag_of(kRun, range().key, block, 2, data, bytes).digest, tags[block].digest);
  }
}

TEST_F(TaggedSpaceTest, ABlockReadWrongOnceIsReadAgainAndReported) {
  make({offload::StorageFault::kFlippedRead, 2, false});  // after the open and the write
  std::mutex mutex;
  std::string said;
  set_log_sink([&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    said += line;
  });
  write();
  EXPECT_EQ(read(), data_);
  set_log_sink([](LogLevel, const std::string&) {});
  EXPECT_EQ(tagged_->counters().reread_blocks, 1u);
  for (const char* word :
       {"moment1 of unit 3", "was wrong when it was read", "bytes at offset", ".state"}) {
    EXPECT_TRUE(mentions(said, word));
  }
}

TEST_F(TaggedSpaceTest, ABlockThatStaysWrongNamesFilePlaceAndOwner) {
  for (const auto fault :
       {offload::StorageFault::kFlippedWrite, offload::StorageFault::kLostWrite}) {
    make({fault, 1, false});
    write();
    const auto error = thrown_by<offload::IntegrityError>([&] { read(); });
    EXPECT_EQ(error.path, space_->locate(8192).path);
    EXPECT_EQ(error.offset_bytes % kBlock, 8192 % kBlock);
    EXPECT_TRUE(mentions(error.path, kRun.hex()));
    EXPECT_TRUE(mentions(error.what(), "of moment1 of unit 3"));
    EXPECT_EQ(error.code(), "integrity");
  }
}

// The bytes of blocks [first, last) of `data`.
offload::TaggedSpace::Part part_of(offload::TaggedSpace::RangeId id, std::vector<std::byte>& data,
                                   std::uint64_t first, std::uint64_t last) {
  const std::uint64_t end = std::min<std::uint64_t>(last * kBlock, data.size());
  return {id, first * kBlock, data.data() + first * kBlock, end - first * kBlock};
}

TEST_F(TaggedSpaceTest, ACallerTagsItsWritesAndVerifiesItsReads) {
  const auto move = [&](offload::StorageOp op, std::vector<std::byte>& data) {
    offload::submit_and_wait(data.size(), [&](offload::StorageEngine::Callback done) {
      tagged_->submit(op, id_, 0, data.data(), data.size(), std::move(done), 0,
                      offload::TagsBy::kCaller);
    });
  };
  // In parts, in any order, as the threads of an update do.
  tagged_->tag(std::vector{part_of(id_, data_, 3, 6), part_of(id_, data_, 0, 1)});
  tagged_->tag(std::vector{part_of(id_, data_, 1, 3)});
  move(offload::StorageOp::kWrite, data_);
  EXPECT_EQ(tagged_->counters().hashed_bytes, kBytes);
  EXPECT_EQ(read(), data_);  // verified by the space: the tags are the same

  std::vector<std::byte> into(kBytes);
  move(offload::StorageOp::kRead, into);
  EXPECT_EQ(tagged_->counters().hashed_bytes, 2 * kBytes);  // not verified before
  EXPECT_EQ(into, data_);
  into[2 * kBlock + 5] ^= std::byte{4};  // wrong in memory, right on storage
  tagged_->verify(std::vector{part_of(id_, into, 0, 6)});
  EXPECT_EQ(into, data_);
  EXPECT_EQ(tagged_->counters().reread_blocks, 1u);
}

TEST_F(TaggedSpaceTest, ACallerFindsABlockThatIsWrongOnStorage) {
  write();
  std::vector<std::byte> other = data_;
  other[4 * kBlock + 1] ^= std::byte{1};
  space_->transfer(offload::StorageOp::kWrite, range().offset_bytes, other.data(), other.size());
  EXPECT_NO_THROW(tagged_->verify(std::vector{part_of(id_, other, 0, 4)}));
  EXPECT_THROW(tagged_->verify(std::vector{part_of(id_, other, 4, 6)}), offload::IntegrityError);
}

TEST_F(TaggedSpaceTest, AFailedReadReportsItsOwnError) {
  make({offload::StorageFault::kEio, 2, false});
  write();
  EXPECT_THROW(read(), IoError);
  EXPECT_EQ(read(), data_);
}

}  // namespace
}  // namespace sluice::testing
