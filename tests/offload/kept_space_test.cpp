// A striped space that keeps its files: one run writes it, and another reads it.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <vector>

#include "offload/striped_space.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::offload {
namespace {

namespace fs = std::filesystem;

class KeptSpace : public ::testing::Test {
 protected:
  static constexpr RunId kRun{5, 6};
  static constexpr std::uint64_t kBytes = 2 * StripedSpace::kStripeBytes + 12345;

  KeptSpace() : data_(kBytes) {
    for (const char* name : {"a", "b"}) {
      fs::create_directory(directory_.path() / name);
      paths_.push_back(directory_.file(name));
    }
    for (std::uint64_t i = 0; i < kBytes; ++i)
      data_[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  }
  void write(const std::vector<std::uint32_t>& shares = {}) {
    StripedSpace space(engine_.get(), ledger_, paths_, kBytes, kRun, true, shares);
    files_ = space.file_paths();
    space.transfer(StorageOp::kWrite, 0, data_.data(), kBytes);
    space.flush();
  }
  void expect_data(StripedSpace& space) const {
    std::vector<std::uint8_t> read(kBytes);
    space.transfer(StorageOp::kRead, 0, read.data(), kBytes);
    EXPECT_TRUE(read == data_);
  }

  testing::TempDirectory directory_;
  std::vector<std::string> paths_;
  std::vector<std::string> files_;
  std::vector<std::uint8_t> data_;
  allocator::Ledger ledger_{{0, 0, 3 * kBytes}};
  std::unique_ptr<StorageEngine> engine_ = make_storage_engine("posix", {});
};

TEST_F(KeptSpace, IsReadAsItWasWritten) {
  write();
  EXPECT_EQ(files_, (std::vector<std::string>{paths_[0] + "/sluice-" + kRun.hex() + "-0.durable",
                                              paths_[1] + "/sluice-" + kRun.hex() + "-1.durable"}));
  StripedSpace space(*engine_, files_, kBytes);
  expect_data(space);
  EXPECT_EQ(ledger_.totals(Tier::kStorage).live_bytes, 0u);  // others' kept files are not charged
}

// The layout is that of the run that wrote it, even if the reading run would choose other shares.
TEST_F(KeptSpace, IsReadWithTheSharesItWasWrittenWith) {
  const std::vector<std::uint32_t> shares{1, 2};  // stripes 1, 0, 1: none where even ones are
  write(shares);
  const StripeLayout layout(shares);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    EXPECT_EQ(fs::file_size(files_[i]), layout.bytes_on(i, kBytes));
  }
  EXPECT_NE(fs::file_size(files_[0]), StripeLayout::even(2).bytes_on(0, kBytes));
  StripedSpace space(*engine_, files_, kBytes, shares);
  expect_data(space);
  EXPECT_THROW(StripedSpace(*engine_, files_, kBytes), InputError);
}

TEST_F(KeptSpace, WithAFileMissingOrOfAnotherSizeIsRefusedByName) {
  write();
  fs::resize_file(files_[1], fs::file_size(files_[1]) - 1);
  const auto refusal = [&] {
    return testing::refusal_of([&] { StripedSpace(*engine_, files_, kBytes); });
  };
  EXPECT_TRUE(testing::mentions(refusal(), files_[1]));
  fs::remove(files_[1]);
  EXPECT_TRUE(testing::mentions(refusal(), files_[1]));
}

TEST_F(KeptSpace, AFileThatIsALinkIsNotFollowed) {
  write();
  fs::rename(files_[1], files_[1] + ".elsewhere");
  fs::create_symlink(files_[1] + ".elsewhere", files_[1]);
  EXPECT_THROW(StripedSpace(*engine_, files_, kBytes), InputError);
  // A directory may be a link: its owner chooses the place of a run directory.
  fs::remove(files_[1]);
  fs::rename(files_[1] + ".elsewhere", files_[1]);
  fs::create_directory_symlink(paths_[1], paths_[1] + "_link");
  files_[1] = paths_[1] + "_link/" + fs::path(files_[1]).filename().string();
  EXPECT_NO_THROW(StripedSpace(*engine_, files_, kBytes));
}

TEST_F(KeptSpace, AFailedCreationLeavesNoFile) {
  fs::remove(paths_[1]);
  EXPECT_THROW(StripedSpace(engine_.get(), ledger_, paths_, kBytes, kRun, true), InputError);
  EXPECT_TRUE(fs::is_empty(paths_[0]));
}

}  // namespace
}  // namespace sluice::offload
