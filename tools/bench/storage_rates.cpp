#include "tools/bench/storage_rates.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/rng.hpp"
#include "base/units.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A range of blocks, visited in order and again from the start.
struct Range {
  std::uint64_t first_block = 0;
  std::uint64_t blocks = 1;
  std::atomic<std::uint64_t> next = 0;  // counted from `begin`
  std::uint64_t begin = 0;
};

// Requests under way use the staging memory, so the process must wait for them even if the disk
// hangs. It logs a warning and waits this long.
constexpr double kYearSeconds = 365.0 * 24 * 3600;
void tell_of_waiting(const std::exception& late) {
  log(LogLevel::kWarning, std::string(late.what()) + "; waiting for the requests under way");
}

class Load {
 public:
  Load(offload::StorageEngine& engine, const StorageLoad& load, StorageMix mix, std::byte* staging)
      : engine_(engine), load_(load), mix_(mix), staging_(staging), turns_(load.depth) {
    const std::uint64_t blocks = load.file_bytes / load.block_bytes;
    SLUICE_CHECK(blocks >= 2 && load.depth >= 1);
    reads_.blocks = writes_.blocks = blocks;
    if (mix != StorageMix::kDuplex) return;
    const std::uint64_t half = blocks / 2;
    writes_.begin = half;
    // Slots take turns, so neither direction gets ahead by more than all slots. In a file of at
    // least six rings the two do not meet (and if they did, the data would not matter).
    if (blocks >= 6 * std::uint64_t{load.depth}) return;
    reads_.blocks = half;
    writes_.first_block = half;
    writes_.blocks = blocks - half;
    writes_.begin = 0;
  }

  StorageRate run() {
    const double cpu_before = process_cpu_seconds();
    begin_ = Clock::now();
    for (std::uint32_t slot = 0; slot < load_.depth; ++slot) submit(slot);
    try {
      engine_.drain(Deadline::after_seconds(load_.seconds + kDefaultDeadlineSeconds));
    } catch (const TimeoutError& late) {
      tell_of_waiting(late);
      engine_.drain(Deadline::after_seconds(kYearSeconds));
      throw;
    }
    StorageRate rate;
    rate.seconds = seconds_since(begin_);
    rate.cpu_seconds = process_cpu_seconds() - cpu_before;
    rate.bytes = moved_.load();
    const MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    return rate;
  }

 private:
  // Each slot is a chain: when a request completes, the completion thread submits the slot's next.
  void submit(std::uint32_t slot) {
    const bool turn = (turns_[slot]++ + slot) % 2 == 1;
    const bool write = mix_ == StorageMix::kWrite || (mix_ == StorageMix::kDuplex && turn);
    Range& range = write ? writes_ : reads_;
    offload::StorageRequest request;
    request.op = write ? offload::StorageOp::kWrite : offload::StorageOp::kRead;
    request.file = load_.file;
    request.bytes = load_.block_bytes;
    const std::uint64_t block = (range.begin + range.next++) % range.blocks;
    request.offset = (range.first_block + block) * load_.block_bytes;
    request.data = staging_ + slot * load_.block_bytes;
    engine_.submit(request, [this, slot](std::exception_ptr error) { ended(slot, error); });
  }

  void ended(std::uint32_t slot, const std::exception_ptr& error) {
    if (error) {
      const MutexLock lock(mutex_);
      if (!error_) error_ = error;
      return;
    }
    const std::uint64_t moved = moved_ += load_.block_bytes;
    const std::uint64_t coming = (load_.depth - 1) * load_.block_bytes;
    if (moved + coming < load_.bytes && seconds_since(begin_) < load_.seconds) submit(slot);
  }

  offload::StorageEngine& engine_;
  const StorageLoad load_;
  const StorageMix mix_;
  std::byte* const staging_;
  Clock::time_point begin_;
  std::vector<std::uint32_t> turns_;  // requests so far, by slot; used by its chain alone
  Range reads_;
  Range writes_;
  std::atomic<std::uint64_t> moved_ = 0;
  Mutex mutex_;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);  // the first
};

// Runs one chain per slot. All requests but the first reads are submitted on the completion thread.
class Rewriting {
 public:
  Rewriting(offload::StripedSpace& space, const StorageLoad& load, std::byte* staging)
      : space_(space), load_(load), staging_(staging), offsets_(load.depth) {
    SLUICE_CHECK(load.depth >= 2 && blocks() >= load.depth);
  }

  StorageRate run() {
    const double cpu_before = process_cpu_seconds();
    const auto begin = Clock::now();
    {
      const MutexLock lock(mutex_);
      under_way_ = load_.depth / 2;
    }
    for (std::uint32_t slot = 0; slot < load_.depth / 2; ++slot) read(slot);
    MutexLock lock(mutex_);
    const auto deadline = Deadline::after_seconds(load_.seconds + kDefaultDeadlineSeconds);
    const auto ended = [this]() SLUICE_REQUIRES(mutex_) { return under_way_ == 0; };
    if (!none_left_.wait_until(lock, deadline, ended)) {
      const TimeoutError late("the storage engine to rewrite " + std::to_string(load_.bytes) +
                              " bytes");
      tell_of_waiting(late);
      none_left_.wait_until(lock, Deadline::after_seconds(kYearSeconds), ended);
      throw late;
    }
    if (error_) std::rethrow_exception(error_);
    StorageRate rate;
    rate.seconds = seconds_since(begin);
    rate.cpu_seconds = process_cpu_seconds() - cpu_before;
    rate.bytes = moved_;
    return rate;
  }

 private:
  std::uint64_t blocks() const { return space_.bytes() / load_.block_bytes; }

  void read(std::uint32_t slot) {
    offsets_[slot] = next_++ % blocks() * load_.block_bytes;
    submit(offload::StorageOp::kRead, slot, [this](std::uint32_t ended) {
      if (!std::exchange(others_begun_, true)) {
        {
          const MutexLock lock(mutex_);
          under_way_ += load_.depth - load_.depth / 2;
        }
        for (std::uint32_t other = load_.depth / 2; other < load_.depth; ++other) read(other);
      }
      submit(offload::StorageOp::kWrite, ended, [this](std::uint32_t written) {
        const std::uint64_t coming = 2 * (load_.depth - 1) * load_.block_bytes;
        if (moved_ + coming < load_.bytes) return read(written);
        end();
      });
    });
  }
  template <typename Then>
  void submit(offload::StorageOp op, std::uint32_t slot, Then then) {
    space_.submit(op, offsets_[slot], staging_ + slot * load_.block_bytes, load_.block_bytes,
                  [this, slot, then](std::exception_ptr error) {
                    if (error) {
                      {
                        const MutexLock lock(mutex_);
                        if (!error_) error_ = error;
                      }
                      return end();
                    }
                    moved_ += load_.block_bytes;
                    then(slot);
                  });
  }
  void end() {
    const MutexLock lock(mutex_);
    if (--under_way_ == 0) none_left_.notify_one();
  }

  offload::StripedSpace& space_;
  const StorageLoad load_;
  std::byte* const staging_;
  std::vector<std::uint64_t> offsets_;  // by slot; used by its chain alone
  std::atomic<std::uint64_t> next_ = 0;
  // Used by the completion thread; run() reads moved_ when all chains have ended.
  std::uint64_t moved_ = 0;
  bool others_begun_ = false;
  Mutex mutex_;
  CondVar none_left_;
  std::uint32_t under_way_ SLUICE_GUARDED_BY(mutex_) = 0;  // chains
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);     // the first
};

}  // namespace

double process_cpu_seconds() {
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) throw IoError("getrusage", "self", 0, 0, errno);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double thread_cpu_seconds() {
  timespec now{};
  SLUICE_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

StagingRing::StagingRing(std::uint64_t bytes) : bytes_(round_up(bytes, kPageBytes)) {
  // One huge page more than needed: mmap aligns to small pages only.
  allocated_bytes_ = bytes_ + kPageBytes;
  void* memory =
      ::mmap(nullptr, allocated_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw OutOfMemory(Tier::kPinned, Category::kExternal, bytes_, 0);
  allocation_ = static_cast<std::byte*>(memory);
  data_ =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(memory), kPageBytes));
  // The kernel refuses if it has no huge pages; the ring is then only slower.
  static_cast<void>(::madvise(data_, bytes_, MADV_HUGEPAGE));
  std::uint64_t state = 0x9e3779b97f4a7c15ull;
  for (std::uint64_t i = 0; i < bytes_; i += sizeof state) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX generator
    std::memcpy(data_ + i, &state, sizeof state);
  }
}

StagingRing::~StagingRing() {
  ::munmap(allocation_, allocated_bytes_);
}

std::uint64_t StagingRing::huge_bytes() const {
  std::ifstream maps("/proc/self/smaps");
  const auto first = reinterpret_cast<std::uintptr_t>(data_);
  std::uint64_t found = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t kib = 0;
    // A mapping's first line is "begin-end ..." in hexadecimal; names of figures have no dash.
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2) {
      inside = begin < first + bytes_ && end > first;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64 " kB", &kib) == 1) {
      found += kib * kKiB;
    }
  }
  return std::min(found, bytes_);
}

StorageRate measure_storage(offload::StorageEngine& engine, const StorageLoad& load, StorageMix mix,
                            void* staging) {
  return Load(engine, load, mix, static_cast<std::byte*>(staging)).run();
}

StorageRate measure_rewriting(offload::StripedSpace& space, const StorageLoad& load,
                              void* staging) {
  return Rewriting(space, load, static_cast<std::byte*>(staging)).run();
}

double measure_tags(const StagingRing& ring, std::uint64_t block_bytes, double seconds) {
  const std::uint64_t blocks = ring.bytes() / block_bytes;
  std::uint64_t tagged_bytes = 0;
  offload::BlockTag mixed;  // used, so that no tag is left out
  const double begin = thread_cpu_seconds();
  double elapsed = 0;
  for (std::uint32_t version = 1; elapsed < seconds; ++version) {
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const offload::BlockTag tag =
          offload::tag_of({}, 0, block, version, ring.data() + block * block_bytes, block_bytes);
      for (std::size_t i = 0; i < tag.digest.size(); ++i) mixed.digest[i] ^= tag.digest[i];
      tagged_bytes += block_bytes;
    }
    elapsed = thread_cpu_seconds() - begin;
  }
  SLUICE_CHECK(mixed != offload::BlockTag{});
  return static_cast<double>(tagged_bytes) / elapsed;
}

double measure_transfer_alone(offload::StorageEngine& engine, offload::StorageRequest request,
                              std::uint64_t file_bytes, double seconds) {
  constexpr std::uint64_t kLeast = 8;
  const CounterRng offsets(1, stream_of("transfer alone"));
  const auto begin = Clock::now();
  std::uint64_t count = 0;
  while (count < kLeast || seconds_since(begin) < seconds) {
    request.offset = offsets.below(count, file_bytes / request.bytes) * request.bytes;
    engine.transfer(request);
    ++count;
  }
  return seconds_since(begin) / static_cast<double>(count);
}

}  // namespace sluice::bench
