#include "offload/storage_engine.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <future>

#include "tests/contract/storage_contract.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

struct IoUring {
  static std::unique_ptr<offload::StorageEngine> make(const offload::StorageOptions& options) {
    return offload::make_storage_engine("io_uring", options);
  }
  static std::string unavailable_reason() { return offload::io_uring_unavailable_reason(); }
};

struct IoUringWithSubmissionThread : IoUring {
  static std::unique_ptr<offload::StorageEngine> make(offload::StorageOptions options) {
    options.submission_thread = true;
    return IoUring::make(options);
  }
};

struct Posix {
  static std::unique_ptr<offload::StorageEngine> make(const offload::StorageOptions& options) {
    return offload::make_storage_engine("posix", options);
  }
  static std::string unavailable_reason() { return {}; }
};

struct FaultFree : Posix {  // the decorator with nothing planned is the engine itself
  static constexpr bool kFiltersItself = true;
  static std::unique_ptr<offload::StorageEngine> make(const offload::StorageOptions& options) {
    return offload::make_faulty_engine(Posix::make(options), {});
  }
};

using Engines = ::testing::Types<IoUring, IoUringWithSubmissionThread, Posix, FaultFree>;
INSTANTIATE_TYPED_TEST_SUITE_P(Engines, StorageContract, Engines);

TEST(StorageFactory, AutoTakesIoUringWhereTheKernelHasIt) {
  const auto engine = offload::make_storage_engine("auto", {});
  EXPECT_EQ(engine->name(), offload::io_uring_unavailable_reason().empty() ? "io_uring" : "posix");
}

TEST(StorageFactory, AnUnknownKindIsRefused) {
  EXPECT_THROW(offload::make_storage_engine("aio", {}), InputError);
}

// Takes the kernel's side of the ring away: io_uring_enter fails from now on.
void break_rings() {
  const int null = ::open("/dev/null", O_RDWR);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (target == "anon_inode:[io_uring]") ::dup2(null, std::stoi(entry.path().filename()));
  }
  ::close(null);
}

TEST(IoUringEngine, ABrokenRingEndsItsRequestsWithAnErrorAndNoHang) {
  if (!offload::io_uring_unavailable_reason().empty())
    GTEST_SKIP() << offload::io_uring_unavailable_reason();
  constexpr std::uint64_t kBytes = 1 << 20;
  const TempDirectory directory;
  AlignedBytes data(kBytes);
  data.fill(1);
  const auto engine = offload::make_storage_engine("io_uring", {});
  const offload::StorageFileId file =
      engine->open(directory.file("data"), offload::StorageFileMode::kCreate, kBytes);
  const auto write = [&] {
    auto ended = std::make_shared<std::promise<void>>();
    engine->submit({offload::StorageOp::kWrite, file, 0, data.at(), kBytes},
                   [ended](const std::exception_ptr& error) {
                     error ? ended->set_exception(error) : ended->set_value();
                   });
    std::future<void> outcome = ended->get_future();
    EXPECT_EQ(outcome.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    outcome.get();
  };
  write();
  break_rings();
  EXPECT_THROW(write(), IoError);
  EXPECT_THROW(write(), IoError);  // and for ever
}

}  // namespace
}  // namespace sluice::testing
