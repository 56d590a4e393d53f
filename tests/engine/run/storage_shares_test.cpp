// Shares of storage by speed: measured over an engine that holds one path back.
#include "engine/run/storage_shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/stripe_layout.hpp"
#include "tests/support/passing_engine.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

// Each request to a file in a directory called "slow" is handed on so much later, one by one.
class OnePathSlow final : public PassingEngine {
 public:
  OnePathSlow(std::unique_ptr<offload::StorageEngine> inner, std::chrono::milliseconds delay)
      : PassingEngine(std::move(inner)), delay_(delay) {}
  offload::StorageFileId open(const std::string& path, offload::StorageFileMode mode,
                              std::uint64_t bytes) override {
    const offload::StorageFileId file = PassingEngine::open(path, mode, bytes);
    if (fs::path(path).parent_path().filename() == "slow") slow_.push_back(file);
    return file;
  }
  void submit(const offload::StorageRequest& request, Callback done) override {
    if (std::find(slow_.begin(), slow_.end(), request.file) != slow_.end()) {
      std::this_thread::sleep_for(delay_);
    }
    PassingEngine::submit(request, std::move(done));
  }

 private:
  const std::chrono::milliseconds delay_;
  std::vector<offload::StorageFileId> slow_;
};

// Notes the first and the last byte of memory that requests name, and the timed requests: those
// that come after each file was written once.
class SharesEngine final : public PassingEngine {
 public:
  SharesEngine() : PassingEngine(offload::make_storage_engine("auto", {})) {}
  void submit(const offload::StorageRequest& request, Callback done) override {
    std::uint64_t& seen = seen_[request.file];
    if (seen >= kFileBytes) {
      (request.op == offload::StorageOp::kRead ? timed_reads_ : timed_writes_) += request.bytes;
    }
    seen += request.bytes;
    const auto begin = reinterpret_cast<std::uintptr_t>(request.data);
    begin_ = std::min(begin_, begin);
    end_ = std::max(end_, begin + request.bytes);
    PassingEngine::submit(request, std::move(done));
  }
  std::uint64_t bytes() const { return end_ - begin_; }
  std::uint64_t timed_reads() const { return timed_reads_; }
  std::uint64_t timed_writes() const { return timed_writes_; }

 private:
  static constexpr std::uint64_t kFileBytes = 64 * kMiB;
  std::map<offload::StorageFileId, std::uint64_t> seen_;
  std::uint64_t timed_reads_ = 0;
  std::uint64_t timed_writes_ = 0;
  std::uintptr_t begin_ = UINTPTR_MAX;
  std::uintptr_t end_ = 0;
};

class StorageSharesBySpeed : public ::testing::Test {
 protected:
  StorageSharesBySpeed() {
    for (const char* name : {"slow", "fast"}) {
      fs::create_directory(directory_.path() / name);
      config_.memory.storage_paths.push_back(directory_.file(name));
    }
  }
  TempDirectory directory_;
  config::Config config_;
};

TEST_F(StorageSharesBySpeed, APathHeldBackGetsFewerStripes) {
  // 16 requests of 1 MiB wait 40 ms each: 25 MiB/s at most, where no machine that runs this is
  // slower without.
  OnePathSlow engine(offload::make_storage_engine("auto", {}), std::chrono::milliseconds(40));
  const std::vector<double> speeds =
      run::measure_path_speeds(engine, config_.memory.storage_paths, 64 * kMiB);
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_LT(speeds[0], 30e6);
  EXPECT_GT(speeds[1], speeds[0]);
  const auto shares =
      run::shares_within_room(config_, speeds, 100 * offload::StripeLayout::kStripeBytes);
  EXPECT_GE(shares[1], shares[0]);
  // Nothing is left behind.
  for (const std::string& path : config_.memory.storage_paths) EXPECT_TRUE(fs::is_empty(path));
}

TEST_F(StorageSharesBySpeed, AreMeasuredWithinTheMemoryThatIsAllowed) {
  for (const auto& [allowed, used] :
       {std::pair(kMiB, kMiB), std::pair(3 * kMiB, 2 * kMiB), std::pair(256 * kMiB, 16 * kMiB)}) {
    SharesEngine engine;
    const auto speeds = run::measure_path_speeds(engine, config_.memory.storage_paths, allowed);
    EXPECT_EQ(engine.bytes(), used);
    EXPECT_GT(*std::min_element(speeds.begin(), speeds.end()), 0);
    // Half of the timed bytes are reads, however few requests are in flight: with one, a path may
    // end on a read.
    EXPECT_GT(engine.timed_reads(), 0u);
    EXPECT_GE(engine.timed_reads(), engine.timed_writes());
    EXPECT_LE(engine.timed_reads(), engine.timed_writes() + speeds.size() * kMiB);
  }
}

TEST_F(StorageSharesBySpeed, AreTheConfigurationsWhereItHasSome) {
  EXPECT_TRUE(run::choose_storage_shares(config_, 0).empty());
  config_.memory.storage_shares = {1, 4};
  EXPECT_EQ(run::choose_storage_shares(config_, 1), (std::vector<std::uint32_t>{1, 4}));
  config_.memory.storage_shares.clear();
  EXPECT_EQ(run::choose_storage_shares(config_, 1).size(), 2u);
  config_.memory.storage_paths.pop_back();
  EXPECT_TRUE(run::choose_storage_shares(config_, 1).empty());
}

// No path has that much room: the remaining split is even, and the run's own check refuses it.
TEST_F(StorageSharesBySpeed, AreEvenWhereNoOthersFit) {
  EXPECT_EQ(run::shares_within_room(config_, {1, 7}, std::uint64_t{1} << 60),
            (std::vector<std::uint32_t>{1, 1}));
}

}  // namespace
}  // namespace sluice::testing
