// The log of a durable run's commits: two records in turn, each whole or none.
#include "offload/state_log.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

class StateLogTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("state.log"); }
  StateLog::Contents contents() {
    const auto engine = make_storage_engine("posix", {});
    return StateLog::read(*engine, path());
  }
  std::vector<StateLog::Record> read() { return contents().records; }
  static constexpr std::uint64_t kRecordBytes = 1000;

  testing::TempDirectory directory_;
  std::unique_ptr<StorageEngine> engine_ = make_storage_engine("posix", {});
};

TEST_F(StateLogTest, HoldsTheNewestTwoRecordsNewestFirst) {
  StateLog log(*engine_, path(), StateLog::file_bytes(kRecordBytes));
  EXPECT_TRUE(contents().blank());
  for (std::uint64_t i = 1; i <= 5; ++i) {
    log.append(std::string(i * 100, static_cast<char>('a' + i)));
    const std::vector<StateLog::Record> records = read();
    ASSERT_EQ(records.size(), i == 1 ? 1u : 2u);
    EXPECT_EQ(contents().unreadable_areas, 0u);
    EXPECT_EQ(records[0].sequence, i);
    EXPECT_EQ(records[0].text, std::string(i * 100, static_cast<char>('a' + i)));
    if (i > 1) {
      EXPECT_EQ(records[1].sequence, i - 1);
    }
  }
}

TEST_F(StateLogTest, ALogThatExistsIsNotOverwritten) {
  { const StateLog log(*engine_, path(), StateLog::file_bytes(kRecordBytes)); }
  EXPECT_THROW(StateLog(*engine_, path(), StateLog::file_bytes(kRecordBytes)), InputError);
}

TEST_F(StateLogTest, ARecordLongerThanItsRoomIsAnErrorAndHarmsNothing) {
  StateLog log(*engine_, path(), StateLog::file_bytes(kRecordBytes));
  log.append("first");
  EXPECT_THROW(log.append(std::string(5000, 'x')), InternalError);
  log.append("second");
  EXPECT_EQ(read().at(0).text, "second");
  EXPECT_EQ(read().at(1).text, "first");
}

// Every byte of the newest record's frame and text, and the length's high bytes with them.
TEST_F(StateLogTest, ADamagedRecordIsNone) {
  {
    StateLog log(*engine_, path(), StateLog::file_bytes(kRecordBytes));
    log.append("the first");  // in the second area
    log.append("the second");
  }
  std::ifstream in(path(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (std::size_t at = 0; at < 40 + 10; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << damaged;
    const std::vector<StateLog::Record> records = read();
    ASSERT_EQ(records.size(), 1u) << "byte " << at;
    EXPECT_EQ(records[0].text, "the first");
    EXPECT_EQ(contents().unreadable_areas, 1u);
  }
}

// Whatever stands in it may have been a commit: of the only record, each bit, and all but one byte.
TEST_F(StateLogTest, ALogWithAByteInItIsNotBlank) {
  { StateLog(*engine_, path(), StateLog::file_bytes(kRecordBytes)).append("the only one"); }
  std::ifstream in(path(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t begin = whole.size() / 2;
  for (std::size_t at = begin; at < begin + 40 + 12; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << damaged;
    EXPECT_TRUE(read().empty());
    EXPECT_FALSE(contents().blank()) << "byte " << at;
    if (whole[at] == 0) continue;
    std::string single(whole.size(), '\0');
    single[at] = whole[at];
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << single;
    EXPECT_FALSE(contents().blank()) << "byte " << at;
  }
}

TEST_F(StateLogTest, AFileThatIsNoLogHoldsNone) {
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(79, '\0'),
                                   std::string(80, '\xff'), std::string(100000, 'S')}) {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_TRUE(read().empty());
  }
}

// After a failed write or flush the disk may hold the record or not: nothing is written any more.
TEST_F(StateLogTest, OnceAnAppendHasFailedEveryOtherFails) {
  for (const std::uint64_t operation : {3u, 4u}) {  // open, write, flush; write, flush
    std::filesystem::remove(path());
    auto faulty = make_faulty_engine(make_storage_engine("posix", {}),
                                     {StorageFault::kEio, operation, false});
    StateLog log(*faulty, path(), StateLog::file_bytes(kRecordBytes));
    log.append("first");
    EXPECT_THROW(log.append("second"), IoError);
    EXPECT_THROW(log.append("third"), Error);
    EXPECT_THROW(log.append("fourth"), Error);
    EXPECT_EQ(read().back().text, "first");
  }
}

}  // namespace
}  // namespace sluice
