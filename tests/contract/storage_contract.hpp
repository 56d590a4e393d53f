// The promises of every storage engine (offload/storage_engine.hpp). Instantiate with a type
// that has
//   static std::unique_ptr<StorageEngine> make(const StorageOptions&);
//   static std::string unavailable_reason();   // empty: run
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "offload/storage_engine.hpp"
#include "tests/support/aligned_bytes.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::testing {

inline std::uint64_t hash_of(const std::byte* data, std::uint64_t bytes) {
  return XXH3_64bits(data, bytes);
}

// Collects the ends of requests.
class Ends {
 public:
  offload::StorageEngine::Callback callback() {
    return [this](std::exception_ptr error) {
      const std::lock_guard lock(mutex_);
      ++ended_;
      if (error) errors_.push_back(error);
      threads_.insert(std::this_thread::get_id());
    };
  }
  std::size_t ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::vector<std::exception_ptr> errors() const {
    const std::lock_guard lock(mutex_);
    return errors_;
  }
  std::set<std::thread::id> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  mutable std::mutex mutex_;
  std::size_t ended_ = 0;
  std::vector<std::exception_ptr> errors_;
  std::set<std::thread::id> threads_;
};

template <typename Factory>
class StorageContract : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = Factory::unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    offload::StorageOptions options;
    options.queue_depth = 8;
    options.request_bytes = 64 * kKiB;  // small, so that requests are split
    engine_ = Factory::make(options);
  }
  offload::StorageFileId scratch(std::uint64_t bytes) {
    return engine_->open(directory_.file("scratch"), offload::StorageFileMode::kScratch, bytes);
  }
  static Deadline soon() { return Deadline::after_seconds(60); }
  void read(offload::StorageFileId file, std::uint64_t offset, void* data, std::uint64_t bytes) {
    engine_->transfer({offload::StorageOp::kRead, file, offset, data, bytes});
  }
  void write(offload::StorageFileId file, std::uint64_t offset, void* data, std::uint64_t bytes) {
    engine_->transfer({offload::StorageOp::kWrite, file, offset, data, bytes});
  }
  // All of `data` in equal parts, each to its own offset.
  void submit_writes(offload::StorageFileId file, const AlignedBytes& data, std::uint64_t parts,
                     Ends& ends) {
    const std::uint64_t bytes = data.bytes() / parts;
    for (std::uint64_t at = 0; at < data.bytes(); at += bytes) {
      engine_->submit({offload::StorageOp::kWrite, file, at, data.at(at), bytes}, ends.callback());
    }
  }
  std::string open_error(const std::string& path, offload::StorageFileMode mode,
                         std::uint64_t bytes) {
    return refusal_of([&] { engine_->open(path, mode, bytes); });
  }

  TempDirectory directory_;
  std::unique_ptr<offload::StorageEngine> engine_;
};

TYPED_TEST_SUITE_P(StorageContract);

TYPED_TEST_P(StorageContract, ReadsWrittenBytesAtAnyOffsetSizeAndAddress) {
  constexpr std::uint64_t kFileBytes = 1 * kMiB + 777;
  const auto file = this->scratch(kFileBytes);
  AlignedBytes model(kFileBytes);
  AlignedBytes buffer(400 * kKiB);
  buffer.fill(1);
  std::mt19937_64 random(2);
  std::uint64_t written = 0;
  std::uint64_t checked = 0;
  for (int i = 0; i < 150; ++i) {
    const bool aligned = random() % 4 == 0;
    const std::uint64_t unit = aligned ? 4096 : 1;
    const std::uint64_t most = random() % 3 == 0 ? 300 * kKiB : 6000;
    const std::uint64_t bytes = round_up(1 + random() % most, unit);
    const std::uint64_t offset = random() % (kFileBytes - bytes) / unit * unit;
    std::byte* data = buffer.at(random() % (buffer.bytes() - bytes) / unit * unit);
    if (random() % 2 == 0) {
      this->write(file, offset, data, bytes);
      std::memcpy(model.at(offset), data, bytes);
      written += bytes;
    } else {
      this->read(file, offset, data, bytes);
      ASSERT_EQ(hash_of(data, bytes), hash_of(model.at(offset), bytes)) << "round " << i;
      checked += bytes;
    }
  }
  AlignedBytes whole(kFileBytes);
  this->read(file, 0, whole.at(), kFileBytes);
  EXPECT_EQ(hash_of(whole.at(), kFileBytes), hash_of(model.at(), kFileBytes));
  const auto counters = this->engine_->counters();
  EXPECT_EQ(counters.write_bytes, written);
  EXPECT_EQ(counters.read_bytes, checked + kFileBytes);
  EXPECT_EQ(counters.reads + counters.writes, 151u);
  EXPECT_GT(counters.bounced, 0u);
}

TYPED_TEST_P(StorageContract, AlignedRequestsAreNotBounced) {
  const auto file = this->scratch(1 * kMiB);
  AlignedBytes data(1 * kMiB);
  data.fill(3);
  this->engine_->register_memory(data.at(), data.bytes());
  this->write(file, 0, data.at(), data.bytes());
  const std::uint64_t hash = hash_of(data.at(), data.bytes());
  std::memset(data.at(), 0, data.bytes());
  this->read(file, 0, data.at(), data.bytes());
  EXPECT_EQ(hash_of(data.at(), data.bytes()), hash);
  EXPECT_EQ(this->engine_->counters().bounced, 0u);
}

TYPED_TEST_P(StorageContract, ThreadsSeeTheirOwnWrites) {
  // Pieces of 10,007 bytes: neighbours of different threads share blocks.
  constexpr std::uint64_t kPieceBytes = 10007;
  constexpr int kThreads = 4;
  constexpr int kPieces = 20;
  const auto file = this->scratch(kPieceBytes * kThreads * kPieces);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        AlignedBytes out(kPieceBytes);
        AlignedBytes in(kPieceBytes);
        for (int i = 0; i < kPieces; ++i) {
          const std::uint64_t offset = static_cast<std::uint64_t>(i * kThreads + t) * kPieceBytes;
          out.fill(offset);
          this->write(file, offset, out.at(), kPieceBytes);
          this->read(file, offset, in.at(), kPieceBytes);
          if (hash_of(in.at(), kPieceBytes) != hash_of(out.at(), kPieceBytes)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  AlignedBytes expected(kPieceBytes);
  AlignedBytes found(kPieceBytes);
  for (std::uint64_t i = 0; i < kThreads * kPieces; ++i) {
    expected.fill(i * kPieceBytes);
    this->read(file, i * kPieceBytes, found.at(), kPieceBytes);
    ASSERT_EQ(hash_of(found.at(), kPieceBytes), hash_of(expected.at(), kPieceBytes)) << i;
  }
}

TYPED_TEST_P(StorageContract, UnalignedNeighboursUnderWayAtOnceKeepAllBytes) {
  constexpr std::uint64_t kPieceBytes = 100;
  constexpr std::uint64_t kPieces = 300;
  const auto file = this->scratch(kPieceBytes * kPieces);
  AlignedBytes data(kPieceBytes * kPieces);
  data.fill(5);
  Ends ends;
  this->submit_writes(file, data, kPieces, ends);
  this->engine_->drain(this->soon());
  EXPECT_TRUE(ends.errors().empty());
  AlignedBytes found(data.bytes());
  this->read(file, 0, found.at(), found.bytes());
  EXPECT_EQ(hash_of(found.at(), found.bytes()), hash_of(data.at(), data.bytes()));
}

TYPED_TEST_P(StorageContract, CallbacksRunOnOneThreadThatIsNotTheCallers) {
  const auto file = this->scratch(64 * kKiB);
  AlignedBytes data(50 * 4096);
  Ends ends;
  for (std::uint64_t i = 0; i < 50; ++i) {
    this->engine_->submit(
        {offload::StorageOp::kRead, file, 4096, data.at(i * 4096), i % 2 == 0 ? 4096u : 0u},
        ends.callback());
  }
  this->engine_->drain(this->soon());
  EXPECT_EQ(ends.ended(), 50u);
  EXPECT_EQ(ends.threads().size(), 1u);
  EXPECT_EQ(ends.threads().count(std::this_thread::get_id()), 0u);
}

TYPED_TEST_P(StorageContract, CallbacksMaySubmitWhenTheQueueIsFull) {
  constexpr std::uint64_t kChains = 100;
  const auto file = this->scratch(64 * kKiB);
  AlignedBytes data(kChains * 4096);  // a buffer for each chain
  std::atomic<int> left = 400;
  offload::StorageEngine& engine = *this->engine_;
  std::function<void(std::uint64_t)> next = [&](std::uint64_t chain) {
    engine.submit({offload::StorageOp::kRead, file, 0, data.at(chain * 4096), 4096},
                  [&, chain](std::exception_ptr) {
                    if (--left > 0) next(chain);
                  });
  };
  for (std::uint64_t chain = 0; chain < kChains; ++chain) next(chain);
  engine.drain(this->soon());
  EXPECT_LE(left, 0);
}

TYPED_TEST_P(StorageContract, AThrowingCallbackHarmsNoOther) {
  const auto file = this->scratch(64 * kKiB);
  AlignedBytes data(3 * 4096);
  this->engine_->submit({offload::StorageOp::kRead, file, 0, data.at(), 4096},
                        [](std::exception_ptr) { throw std::runtime_error("on purpose"); });
  this->engine_->submit({offload::StorageOp::kRead, file, 0, data.at(4096), 4096},
                        [](std::exception_ptr) { throw 1; });
  this->read(file, 0, data.at(8192), 4096);
  this->engine_->drain(this->soon());
}

TYPED_TEST_P(StorageContract, DrainEndsAtItsDeadline) {
  const auto file = this->scratch(64 * kKiB);
  AlignedBytes data(4096);
  std::promise<void> release;
  this->engine_->submit({offload::StorageOp::kRead, file, 0, data.at(), 4096},
                        [&](std::exception_ptr) { release.get_future().wait(); });
  EXPECT_THROW(this->engine_->drain(Deadline::after_seconds(0.02)), TimeoutError);
  release.set_value();
  this->engine_->drain(this->soon());
}

TYPED_TEST_P(StorageContract, RangesOutsideTheFileAreErrorsOfTheRequest) {
  const auto file = this->scratch(10000);
  AlignedBytes data(8192);
  const std::uint64_t huge = ~std::uint64_t{0};
  for (const std::uint64_t offset :
       {std::uint64_t{9000}, std::uint64_t{10000}, huge - 4096, huge, std::uint64_t{1} << 63}) {
    const auto read = thrown_by<IoError>([&] { this->read(file, offset, data.at(), 4096); });
    EXPECT_EQ(read.error_number, 0);
    EXPECT_EQ(read.offset, offset);
    const auto write = thrown_by<IoError>([&] { this->write(file, offset, data.at(), 4096); });
    EXPECT_EQ(write.error_number, ENOSPC);
  }
  EXPECT_THROW(this->read(file, 0, data.at(), huge), IoError);
  this->write(file, 10000 - 4096, data.at(), 4096);
}

TYPED_TEST_P(StorageContract, AReadOnlyFileIsReadToItsLastByteAndNoFurther) {
  const std::string path = this->directory_.file("given");
  std::string text(5003, 'x');
  text.back() = 'y';
  std::ofstream(path) << text;
  const auto file = this->engine_->open(path, offload::StorageFileMode::kReadOnly, 0);
  AlignedBytes data(8192);
  this->read(file, 0, data.at(), text.size());
  EXPECT_EQ(std::memcmp(data.at(), text.data(), text.size()), 0);
  this->read(file, 5002, data.at(1), 1);
  EXPECT_EQ(data.at(1)[0], std::byte{'y'});
  EXPECT_THROW(this->read(file, 0, data.at(), text.size() + 1), IoError);
  EXPECT_THROW(this->write(file, 0, data.at(), 1), InternalError);
  EXPECT_EQ(this->engine_->counters().allocated_bytes, 0u);
}

TYPED_TEST_P(StorageContract, AFileThatShrankUnderneathEndsShort) {
  const std::string path = this->directory_.file("shrinks");
  std::ofstream(path) << std::string(256 * kKiB, 'x');
  const auto file = this->engine_->open(path, offload::StorageFileMode::kReadOnly, 0);
  std::filesystem::resize_file(path, 100 * kKiB + 10);
  AlignedBytes data(256 * kKiB);
  const auto error = thrown_by<IoError>([&] { this->read(file, 0, data.at(), data.bytes()); });
  EXPECT_EQ(error.error_number, 0);
  EXPECT_TRUE(mentions(error.what(), path));
}

TYPED_TEST_P(StorageContract, AClosedFileIsRefused) {
  AlignedBytes data(4096);
  const auto file = this->scratch(4096);
  this->engine_->close(file);
  EXPECT_THROW(this->read(file, 0, data.at(), 4096), InternalError);
  EXPECT_THROW(this->engine_->close(file), InternalError);
  EXPECT_THROW(this->engine_->flush(file), InternalError);
  EXPECT_THROW(this->read(12345, 0, data.at(), 4096), InternalError);
  EXPECT_NE(this->scratch(4096), file);
}

TYPED_TEST_P(StorageContract, ClosingWaitsForTheFilesRequests) {
  const auto file = this->scratch(4 * kMiB);
  AlignedBytes data(4 * kMiB);
  Ends ends;
  this->submit_writes(file, data, 8, ends);
  this->engine_->close(file);
  EXPECT_EQ(ends.ended(), 8u);
  EXPECT_TRUE(ends.errors().empty());
}

TYPED_TEST_P(StorageContract, AnEmptyRequestEndsWell) {
  const auto file = this->scratch(4096);
  this->read(file, 0, nullptr, 0);
  this->write(file, 4096, nullptr, 0);
  EXPECT_EQ(this->engine_->counters().reads, 0u);
}

TYPED_TEST_P(StorageContract, ScratchFilesLeaveNothingAndCreatedFilesHaveTheirSize) {
  const auto gone = this->scratch(1 * kMiB);
  EXPECT_TRUE(std::filesystem::is_empty(this->directory_.path()));
  const std::string path = this->directory_.file("kept");
  const auto kept = this->engine_->open(path, offload::StorageFileMode::kCreate, 5001);
  EXPECT_EQ(this->engine_->counters().allocated_bytes, 1 * kMiB + 5001);
  AlignedBytes data(5001);
  data.fill(9);
  this->write(kept, 0, data.at(), 5001);
  this->engine_->flush(kept);
  EXPECT_EQ(std::filesystem::file_size(path), 5001u);
  this->write(kept, 5000, data.at(), 1);
  this->engine_->close(kept);
  this->engine_->close(gone);
  EXPECT_EQ(std::filesystem::file_size(path), 5001u);
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
  EXPECT_EQ(this->engine_->counters().allocated_bytes, 0u);
  EXPECT_EQ(this->engine_->counters().peak_allocated_bytes, 1 * kMiB + 5001);
}

TYPED_TEST_P(StorageContract, OpenRefusesWithASentenceThatNamesThePlace) {
  const std::string taken = this->directory_.file("taken");
  std::ofstream(taken) << "precious";
  for (const auto mode : {offload::StorageFileMode::kCreate, offload::StorageFileMode::kScratch}) {
    EXPECT_TRUE(mentions(this->open_error(taken, mode, 4096), "exists already"));
  }
  EXPECT_EQ(std::filesystem::file_size(taken), 8u);
  using enum offload::StorageFileMode;
  const std::string absent = this->directory_.file("absent");
  EXPECT_TRUE(mentions(this->open_error(absent + "/file", kScratch, 1), absent));
  EXPECT_TRUE(mentions(this->open_error(absent, kReadOnly, 0), "absent"));
  EXPECT_TRUE(mentions(this->open_error(this->directory_.path(), kReadOnly, 0), "not a regular"));
  // root may write anywhere, so the test becomes another user.
  const uid_t user = ::geteuid();
  ASSERT_EQ(::chmod(this->directory_.path().c_str(), 0555), 0);
  ASSERT_EQ(user == 0 ? ::seteuid(65534) : 0, 0);
  const std::string message =
      this->open_error(this->directory_.file("new"), offload::StorageFileMode::kCreate, 1);
  ASSERT_EQ(user == 0 ? ::seteuid(0) : 0, 0);
  ASSERT_EQ(::chmod(this->directory_.path().c_str(), 0755), 0);
  EXPECT_TRUE(mentions(message, "directory '" + this->directory_.path().string()));
}

TYPED_TEST_P(StorageContract, TooLittleRoomIsRefusedWithBothFigures) {
  const std::string path = this->directory_.file("large");
  const std::uint64_t needed = std::uint64_t{1} << 55;
  for (const std::uint64_t bytes : {needed, ~std::uint64_t{0}}) {
    const std::string message = this->open_error(path, offload::StorageFileMode::kCreate, bytes);
    EXPECT_TRUE(mentions(message, path));
    EXPECT_TRUE(mentions(message, std::to_string(bytes)));
    EXPECT_TRUE(mentions(message, "bytes are available"));
  }
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit small { 64 * kKiB, limit.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = this->open_error(path, offload::StorageFileMode::kCreate, 128 * kKiB);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TRUE(mentions(message, "131072"));
  EXPECT_TRUE(mentions(message, "65536 bytes are available"));
  EXPECT_TRUE(std::filesystem::is_empty(this->directory_.path()));
}

TYPED_TEST_P(StorageContract, DestructionEndsEveryRequestOnce) {
  AlignedBytes data(8 * kMiB);
  Ends ends;
  this->submit_writes(this->scratch(8 * kMiB), data, 32, ends);
  this->engine_.reset();
  EXPECT_EQ(ends.ended(), 32u);
  for (const auto& error : ends.errors()) {
    const auto io = thrown_by<IoError>([&] { std::rethrow_exception(error); });
    EXPECT_EQ(io.error_number, ECANCELED);
  }
}

TYPED_TEST_P(StorageContract, ChainsOfRequestsEndWithTheEngine) {
  constexpr std::uint64_t kChains = 16;
  AlignedBytes data(kChains * 64 * kKiB);
  const auto file = this->scratch(1 * kMiB);
  offload::StorageEngine& engine = *this->engine_;
  std::atomic<std::uint64_t> cancelled = 0;
  std::function<void(std::uint64_t)> next = [&](std::uint64_t chain) {
    engine.submit({offload::StorageOp::kRead, file, 0, data.at(chain * 64 * kKiB), 64 * kKiB},
                  [&, chain](std::exception_ptr error) {
                    if (error) {
                      ++cancelled;
                    } else {
                      next(chain);
                    }
                  });
  };
  for (std::uint64_t chain = 0; chain < kChains; ++chain) next(chain);
  this->engine_.reset();
  EXPECT_EQ(cancelled, kChains);
}

TYPED_TEST_P(StorageContract, MemoryThatCannotBeRegisteredCostsOneLogLine) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  this->engine_->register_memory(reinterpret_cast<void*>(std::uintptr_t{4096}), 3 * kGiB);
  set_log_sink({});
  EXPECT_LE(lines.size(), 1u);
  if (this->engine_->name() == "io_uring") {
    EXPECT_EQ(lines.size(), 1u);
  }
  const auto file = this->scratch(64 * kKiB);
  AlignedBytes data(64 * kKiB);
  this->write(file, 0, data.at(), data.bytes());
}

TYPED_TEST_P(StorageContract, WorksOnATmpfs) {
  const std::filesystem::path memory = "/dev/shm";
  if (!std::filesystem::is_directory(memory)) GTEST_SKIP() << "no " << memory;
  const TempDirectory directory(memory);
  const auto file =
      this->engine_->open(directory.file("data"), offload::StorageFileMode::kScratch, 300001);
  AlignedBytes out(300001);
  AlignedBytes in(300001);
  out.fill(4);
  this->write(file, 0, out.at(), 200000);
  this->write(file, 200000, out.at(200000), 100001);
  this->engine_->flush(file);
  this->read(file, 0, in.at(), in.bytes());
  EXPECT_EQ(hash_of(in.at(), in.bytes()), hash_of(out.at(), out.bytes()));
}

TYPED_TEST_P(StorageContract, ManyFilesAtOnce) {
  // More than the ring registers.
  std::vector<offload::StorageFileId> files;
  AlignedBytes data(4096);
  for (int i = 0; i < 100; ++i) {
    files.push_back(this->engine_->open(this->directory_.file(std::to_string(i)),
                                        offload::StorageFileMode::kScratch, 4096));
    data.fill(static_cast<std::uint64_t>(i));
    this->write(files.back(), 0, data.at(), 4096);
  }
  AlignedBytes found(4096);
  for (std::size_t i = 0; i < files.size(); ++i) {
    data.fill(i);
    this->read(files[i], 0, found.at(), 4096);
    ASSERT_EQ(hash_of(found.at(), 4096), hash_of(data.at(), 4096)) << i;
    this->engine_->close(files[i]);
  }
}

// The order in which requests ended, by their numbers; one piece of each direction at a time.
template <typename Factory>
std::vector<int> order_of_ends(
    const std::string& path, offload::StorageOp first_op,
    const std::vector<std::pair<offload::StorageOp, std::uint64_t>>& requests) {
  constexpr std::uint64_t kBytes = 64 * kKiB;
  offload::StorageOptions options;
  options.queue_depth = 16;  // of the queue; no more than one goes at a time
  options.write_depth = 1;
  options.threads = 1;
  if (first_op == offload::StorageOp::kRead) options.queue_depth = 1;
  // Holds the engine at its first call until it is let go.
  std::promise<void> held, let_go;
  const auto gate = let_go.get_future().share();
  std::once_flag first;
  const auto engine = Factory::make(options);
  engine->filter_results([&, gate](std::int64_t result) {
    std::call_once(first, [&] { held.set_value(); });
    gate.wait_for(std::chrono::seconds(60));
    return result;
  });
  const auto file = engine->open(path, offload::StorageFileMode::kScratch, 64 * kBytes);
  AlignedBytes buffer(64 * kBytes);
  std::mutex mutex;
  std::vector<int> order;
  const auto submit = [&](offload::StorageOp op, int number, std::uint64_t needed_by) {
    const std::uint64_t offset = static_cast<std::uint64_t>(number) * kBytes;
    engine->submit({op, file, offset, buffer.at(offset), kBytes, needed_by},
                   [&, number](const std::exception_ptr& error) {
                     EXPECT_EQ(error, nullptr);
                     const std::lock_guard lock(mutex);
                     order.push_back(number);
                   });
  };
  submit(first_op, 0, 0);
  EXPECT_EQ(held.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    submit(requests[i].first, static_cast<int>(i) + 1, requests[i].second);
  }
  let_go.set_value();
  engine->drain(Deadline::after_seconds(60));
  return order;
}

TYPED_TEST_P(StorageContract, ALaterUrgentReadOvertakesQueuedWrites) {
  if constexpr (requires { TypeParam::kFiltersItself; }) GTEST_SKIP() << "no filter to hold it by";
  std::vector<std::pair<offload::StorageOp, std::uint64_t>> requests(
      6, {offload::StorageOp::kWrite, 100});
  requests.emplace_back(offload::StorageOp::kRead, 1);  // number 7
  const std::vector<int> order = order_of_ends<TypeParam>(this->directory_.file("scratch"),
                                                          offload::StorageOp::kWrite, requests);
  ASSERT_EQ(order.size(), 8u);
  // One write was held, and one more may go with the read.
  EXPECT_LE(std::find(order.begin(), order.end(), 7) - order.begin(), 2);
}

TYPED_TEST_P(StorageContract, TheMostUrgentOfOneDirectionGoesFirst) {
  if constexpr (requires { TypeParam::kFiltersItself; }) GTEST_SKIP() << "no filter to hold it by";
  for (const offload::StorageOp op : {offload::StorageOp::kRead, offload::StorageOp::kWrite}) {
    const std::vector<int> order = order_of_ends<TypeParam>(this->directory_.file("scratch"), op,
                                                            {{op, 9}, {op, 5}, {op, 5}, {op, 1}});
    EXPECT_EQ(order, (std::vector<int>{0, 4, 2, 3, 1}));
  }
}

REGISTER_TYPED_TEST_SUITE_P(
    StorageContract, ReadsWrittenBytesAtAnyOffsetSizeAndAddress, AlignedRequestsAreNotBounced,
    ThreadsSeeTheirOwnWrites, UnalignedNeighboursUnderWayAtOnceKeepAllBytes,
    CallbacksRunOnOneThreadThatIsNotTheCallers, CallbacksMaySubmitWhenTheQueueIsFull,
    AThrowingCallbackHarmsNoOther, DrainEndsAtItsDeadline,
    RangesOutsideTheFileAreErrorsOfTheRequest, AReadOnlyFileIsReadToItsLastByteAndNoFurther,
    AFileThatShrankUnderneathEndsShort, AClosedFileIsRefused, ClosingWaitsForTheFilesRequests,
    AnEmptyRequestEndsWell, ScratchFilesLeaveNothingAndCreatedFilesHaveTheirSize,
    OpenRefusesWithASentenceThatNamesThePlace, TooLittleRoomIsRefusedWithBothFigures,
    DestructionEndsEveryRequestOnce, ChainsOfRequestsEndWithTheEngine,
    MemoryThatCannotBeRegisteredCostsOneLogLine, WorksOnATmpfs, ManyFilesAtOnce,
    ALaterUrgentReadOvertakesQueuedWrites, TheMostUrgentOfOneDirectionGoesFirst);

}  // namespace sluice::testing
