// The log of a durable run's commits: two records in turn, each whole or none.
#include "offload/state_log.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "offload/storage_file.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::offload {
namespace {

class StateLogTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("state.log"); }
  StateLog::Contents contents() {
    const auto engine = make_storage_engine("posix", {});
    return StateLog::read(*engine, path());
  }
  std::vector<StateLog::Record> read() { return contents().records; }
  // A new log with these records.
  void make(const std::vector<std::string>& texts) const {
    StateLog log(*engine_, path(), StateLog::file_bytes(kRecordBytes));
    for (const std::string& text : texts) log.append(text);
  }
  std::string bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void replace(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::string flipped(std::string bytes, std::size_t at, int bits) {
    bytes[at] = static_cast<char>(bytes[at] ^ bits);
    return bytes;
  }
  static constexpr std::uint64_t kRecordBytes = 1000;
  static constexpr std::uint64_t kHeaderBytes = 8192;

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
  make({});
  EXPECT_THROW(make({}), InputError);
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
  make({"the first", "the second"});  // the first in the second area
  const std::string whole = bytes();
  for (std::size_t at = kHeaderBytes; at < kHeaderBytes + 40 + 10; ++at) {
    replace(flipped(whole, at, 0x40));
    const std::vector<StateLog::Record> records = read();
    ASSERT_EQ(records.size(), 1u) << "byte " << at;
    EXPECT_EQ(records[0].text, "the first");
    EXPECT_EQ(contents().unreadable_areas, 1u);
  }
}

// Whatever stands in it may have been a commit: of the only record, each bit, and all but one byte.
TEST_F(StateLogTest, ALogWithAByteInItIsNotBlank) {
  make({"the only one"});
  const std::string whole = bytes();
  const std::size_t begin = (whole.size() + kHeaderBytes) / 2;
  for (std::size_t at = begin; at < begin + 40 + 12; ++at) {
    replace(flipped(whole, at, 1));
    EXPECT_TRUE(read().empty());
    EXPECT_FALSE(contents().blank()) << "byte " << at;
    if (whole[at] == 0) continue;
    std::string single(whole.size(), '\0');
    single[at] = whole[at];
    replace(single);
    EXPECT_FALSE(contents().blank()) << "byte " << at;
  }
}

TEST_F(StateLogTest, AFileThatIsNoLogHoldsNone) {
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(79, '\0'),
                                   std::string(80, '\xff'), std::string(100000, 'S')}) {
    replace(bytes);
    EXPECT_TRUE(read().empty());
  }
}

// However much of it is left, it may have held a commit.
TEST_F(StateLogTest, ALogThatWasCutShortIsNotBlank) {
  make({});
  const std::string none = bytes();
  EXPECT_TRUE(contents().blank());
  std::filesystem::remove(path());
  make({"the only one"});
  for (const std::string& whole : {none, bytes()}) {
    for (const std::size_t left : {std::size_t{0}, std::size_t{1}, std::size_t{39}, kHeaderBytes,
                                   kHeaderBytes + 1, whole.size() / 2, whole.size() - 1}) {
      replace(whole.substr(0, left));
      EXPECT_FALSE(contents().blank()) << left;
    }
    replace(whole + '\0');
    EXPECT_FALSE(contents().blank());
  }
}

TEST_F(StateLogTest, RecordsItsOriginalPathAndFile) {
  make({});
  ASSERT_TRUE(contents().origin);
  EXPECT_EQ(contents().origin->path, path());
  EXPECT_EQ(contents().origin->id, file_id(path()));
  const std::string copy = directory_.file("copy.log");
  std::filesystem::copy_file(path(), copy);
  const StateLog::Contents copied = StateLog::read(*engine_, copy);
  EXPECT_TRUE(copied.blank());
  EXPECT_EQ(copied.origin->path, path());
  EXPECT_NE(copied.origin->id, file_id(copy));
}

// Records do not depend on a header, whole or not; and there was a time without.
TEST_F(StateLogTest, RecordsAreReadWithoutAHeader) {
  make({"first", "second"});
  const std::string whole = bytes();
  for (const std::size_t at : {0u, 8u, 16u, 24u, 40u, 80u}) {
    replace(flipped(whole, at, 1));
    ASSERT_EQ(read().size(), 2u) << at;
    EXPECT_EQ(read()[0].text, "second");
    EXPECT_FALSE(contents().origin);
  }
  replace(whole.substr(kHeaderBytes));
  ASSERT_EQ(read().size(), 2u);
  EXPECT_EQ(read()[0].text, "second");
  EXPECT_EQ(contents().unreadable_areas, 0u);
  EXPECT_FALSE(contents().blank());
  replace(std::string(8192, '\0'));
  EXPECT_TRUE(contents().blank());
}

// After a failed write or flush the disk may hold the record or not: nothing is written any more.
TEST_F(StateLogTest, OnceAnAppendHasFailedEveryOtherFails) {
  for (const std::uint64_t operation : {5u, 6u}) {  // open, write, flush; twice write, flush
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
}  // namespace sluice::offload
