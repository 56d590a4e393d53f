#include "offload/tagged_space.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "base/xxh3.hpp"

namespace sluice {

struct TaggedSpace::Tagged {
  Range range;
  std::vector<BlockTag> tags;

  std::uint64_t block_at(std::uint64_t offset_bytes) const {
    return offset_bytes / range.block_bytes;
  }
};

namespace {

// Of this thread: what the machine's other work takes does not count.
std::int64_t cpu_time_ns() {
  timespec now{};
  SLUICE_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// Little-endian on every machine, like the digests.
std::uint64_t seed_of(const RunId& run, std::uint64_t key, std::uint64_t block,
                      std::uint32_t version) {
  const std::array<std::uint64_t, 5> words{run.high, run.low, key, block, version};
  std::array<std::uint8_t, sizeof words> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(words[i / 8] >> (8 * (i % 8)));
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

BlockTag tag_of(const RunId& run, std::uint64_t key, std::uint64_t block, std::uint32_t version,
                const void* data, std::uint64_t bytes) {
  BlockTag tag;
  tag.version = version;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical,
                           XXH3_128bits_withSeed(data, bytes, seed_of(run, key, block, version)));
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), tag.digest.begin());
  return tag;
}

// Checks what was read against its tags, on a thread of its own. The queue holds no more than the
// reads that its callers keep under way, each with memory that it goes to.
class TaggedSpace::Verifier {
 public:
  struct Read {
    const Tagged* range;
    std::uint64_t offset_bytes;
    std::byte* data;
    std::uint64_t bytes;
    StorageEngine::Callback done;
  };

  Verifier(StripedSpace& space, const RunId& run)
      : space_(space), run_(run), thread_([this] { work(); }) {}

  ~Verifier() {
    {
      std::unique_lock lock(mutex_);
      // No deadline: the engine ends every read, and its callback comes here.
      changed_.wait(lock, [&] { return under_way_ == 0; });
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // To be given to the space with the read.
  StorageEngine::Callback expect(Read read) {
    {
      const std::lock_guard lock(mutex_);
      ++under_way_;
    }
    return [this, read = std::move(read)](std::exception_ptr error) mutable {
      {
        const std::lock_guard lock(mutex_);
        ended_.push_back({std::move(read), std::move(error)});
      }
      changed_.notify_all();
    };
  }

  BlockTag tag(const Range& range, std::uint64_t block, std::uint32_t version,
               const std::byte* data, std::uint64_t bytes) const {
    return tag_of(run_, range.key, block, version, data, bytes);
  }

  void count_hashing(std::uint64_t bytes, std::int64_t begin_ns) {
    hashed_bytes_.fetch_add(bytes);
    hash_ns_.fetch_add(static_cast<std::uint64_t>(cpu_time_ns() - begin_ns));
  }

  TagCounters counters() const {
    return {hashed_bytes_.load(), static_cast<double>(hash_ns_.load()) * 1e-9,
            reread_blocks_.load()};
  }

 private:
  struct Ended {
    Read read;
    std::exception_ptr error;
  };

  void work() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !ended_.empty(); });
      if (ended_.empty()) return;
      Ended ended = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      if (!ended.error) ended.error = verify(ended.read);
      try {
        ended.read.done(ended.error);
      } catch (const std::exception& error) {
        log(LogLevel::kWarning,
            std::string("a storage callback threw, which it must not: ") + error.what());
      }
      ended = {};  // what the callback holds goes before the destructor returns
      lock.lock();
      --under_way_;
      changed_.notify_all();
    }
  }

  std::exception_ptr verify(const Read& read) noexcept {
    try {
      const std::int64_t begin_ns = cpu_time_ns();
      const std::uint64_t step = read.range->range.block_bytes;
      for (std::uint64_t at = 0; at < read.bytes; at += step) {
        const std::uint64_t bytes = std::min(step, read.bytes - at);
        if (!is_right(read, at, bytes)) read_again(read, at, bytes);
      }
      count_hashing(read.bytes, begin_ns);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  bool is_right(const Read& read, std::uint64_t at, std::uint64_t bytes) const {
    const Range& range = read.range->range;
    const std::uint64_t block = read.range->block_at(read.offset_bytes + at);
    const BlockTag& expected = read.range->tags[block];
    SLUICE_CHECK_MSG(expected.version > 0,
                     describe(range, block) + " was never written, and is read from storage");
    return tag(range, block, expected.version, read.data + at, bytes) == expected;
  }

  void read_again(const Read& read, std::uint64_t at, std::uint64_t bytes) {
    const Range& range = read.range->range;
    const std::uint64_t offset = range.offset_bytes + read.offset_bytes + at;
    const std::string what = describe(range, read.range->block_at(read.offset_bytes + at));
    const StripedSpace::Location place = space_.locate(offset);
    space_.transfer(StorageOp::kRead, offset, read.data + at, bytes);
    if (!is_right(read, at, bytes)) {
      throw IntegrityError(what, place.path, place.offset_bytes, bytes);
    }
    reread_blocks_.fetch_add(1);
    log(LogLevel::kWarning, what + ", " + std::to_string(bytes) + " bytes at offset " +
                                std::to_string(place.offset_bytes) + " of '" + place.path +
                                "', came wrong from storage once, and right when it was read "
                                "again; check that disk and the memory of this machine");
  }

  static std::string describe(const Range& range, std::uint64_t block) {
    return "block " + std::to_string(block) + " of " + range.name;
  }

  StripedSpace& space_;
  const RunId run_;
  std::atomic<std::uint64_t> hashed_bytes_ = 0;
  std::atomic<std::uint64_t> hash_ns_ = 0;
  std::atomic<std::uint64_t> reread_blocks_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ended> ended_;      // guarded by mutex_, as all below
  std::uint64_t under_way_ = 0;  // reads whose callback has not run
  bool stopping_ = false;
  std::thread thread_;  // last: uses all of the above
};

TaggedSpace::TaggedSpace(StripedSpace& space, const RunId& run) : space_(space), run_(run) {
  if (space.bytes() > 0) verifier_ = std::make_unique<Verifier>(space, run);
}

TaggedSpace::~TaggedSpace() = default;

TaggedSpace::RangeId TaggedSpace::add_range(const Range& range) {
  SLUICE_CHECK(range.bytes > 0 && range.bytes <= space_.bytes() &&
               range.offset_bytes <= space_.bytes() - range.bytes);
  SLUICE_CHECK(range.block_bytes > 0 && range.block_bytes <= kMostBlockBytes);
  const auto [known, fresh] =
      known_.try_emplace({range.key, range.offset_bytes, range.bytes, range.block_bytes},
                         static_cast<RangeId>(ranges_.size()));
  if (fresh) {
    auto tagged = std::make_unique<Tagged>();
    tagged->range = range;
    tagged->tags.resize(ceil_div(range.bytes, range.block_bytes));
    ranges_.push_back(std::move(tagged));
  }
  return known->second;
}

void TaggedSpace::tag_blocks(Tagged& tagged, std::uint64_t offset_bytes, const std::byte* data,
                             std::uint64_t bytes) {
  const std::int64_t begin_ns = cpu_time_ns();
  const std::uint64_t step = tagged.range.block_bytes;
  for (std::uint64_t at = 0; at < bytes; at += step) {
    const std::uint64_t block = tagged.block_at(offset_bytes + at);
    BlockTag& tag = tagged.tags[block];
    tag =
        verifier_->tag(tagged.range, block, tag.version + 1, data + at, std::min(step, bytes - at));
  }
  verifier_->count_hashing(bytes, begin_ns);
}

void TaggedSpace::submit(StorageOp op, RangeId id, std::uint64_t offset_bytes, void* data,
                         std::uint64_t bytes, StorageEngine::Callback done,
                         std::uint64_t needed_by) {
  SLUICE_CHECK(id < ranges_.size());
  Tagged& tagged = *ranges_[id];
  const Range& range = tagged.range;
  SLUICE_CHECK(bytes > 0 && bytes <= range.bytes && offset_bytes <= range.bytes - bytes);
  const std::uint64_t end = offset_bytes + bytes;
  SLUICE_CHECK_MSG(
      offset_bytes % range.block_bytes == 0 && (end % range.block_bytes == 0 || end == range.bytes),
      "a transfer of " + range.name + " cuts a block");
  auto* const at = static_cast<std::byte*>(data);
  if (op == StorageOp::kWrite) {
    tag_blocks(tagged, offset_bytes, at, bytes);
  } else {
    done = verifier_->expect({&tagged, offset_bytes, at, bytes, std::move(done)});
  }
  space_.submit(op, range.offset_bytes + offset_bytes, data, bytes, std::move(done), needed_by);
}

void TaggedSpace::transfer(StorageOp op, RangeId range, std::uint64_t offset_bytes, void* data,
                           std::uint64_t bytes) {
  submit_and_wait(bytes, [&](StorageEngine::Callback done) {
    submit(op, range, offset_bytes, data, bytes, std::move(done));
  });
}

const TaggedSpace::Range& TaggedSpace::range(RangeId range) const {
  SLUICE_CHECK(range < ranges_.size());
  return ranges_[range]->range;
}

std::span<const BlockTag> TaggedSpace::tags(RangeId range) const {
  SLUICE_CHECK(range < ranges_.size());
  return ranges_[range]->tags;
}

TagCounters TaggedSpace::counters() const {
  return verifier_ ? verifier_->counters() : TagCounters{};
}

}  // namespace sluice
