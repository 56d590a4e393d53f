// Tags: one hash per block and write, kept in memory and compared when the block is read.
//
// The seed contains the run, the range's key, the block number and the number of writes, so a block
// of another run, another place or an earlier write never matches. tag() increments the version and
// stores the hash before the write is submitted. verify() hashes the bytes that arrived; on a
// mismatch it reads that block again, since the fault may lie between disk and memory, and throws
// IntegrityError if it still differs.
//
// Verifier is a queue with one thread between the engine's completion thread and the caller's
// callback. It is bounded by the reads that callers have in flight.
#include "offload/tagged_space.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "base/xxh3.hpp"

namespace sluice::offload {

struct TaggedSpace::Tagged {
  Range range;
  std::vector<BlockTag> tags;

  std::string describe(std::uint64_t block) const {
    return "block " + std::to_string(block) + " of " + range.name;
  }

  // Calls body(block, data, bytes) for each block of the part, and prefetches the next block's tag:
  // an update returns to it only after its data has evicted the tag from the cache.
  template <typename Body>
  void for_blocks(const Part& part, const Body& body) const {
    const std::uint64_t step = range.block_bytes;
    for (std::uint64_t at = 0; at < part.bytes; at += step) {
      const std::uint64_t block = (part.offset_bytes + at) / step;
      if (block + 1 < tags.size()) __builtin_prefetch(&tags[block + 1], 1);
      body(block, part.data + at, std::min(step, part.bytes - at));
    }
  }
};

namespace {

// A steady clock, not the thread's CPU clock: that one is a system call, and an update reads the
// time four times per block.
std::int64_t time_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// The seed of a block: hashed words, little-endian on every machine, like the digests.
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

// Verifies reads on a thread of its own. The queue holds no more than the reads that callers have
// in flight, each with its own memory.
class TaggedSpace::Verifier {
 public:
  struct Read {
    Part part;
    StorageEngine::Callback done;
  };

  explicit Verifier(TaggedSpace& space)
      : space_(space), thread_(start_thread("verify tags", [this] { work(); })) {}

  ~Verifier() {
    {
      MutexLock lock(mutex_);
      // No deadline: the engine ends every read, and each callback arrives here.
      changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return under_way_ == 0; });
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Returns the callback to submit with the read.
  StorageEngine::Callback expect(Read read) {
    {
      const MutexLock lock(mutex_);
      ++under_way_;
    }
    return [this, read = std::move(read)](std::exception_ptr error) mutable {
      // Under the lock: once the verifier has the read, the destructor may go on and end
      // `changed_`.
      const MutexLock lock(mutex_);
      ended_.push_back({std::move(read), std::move(error)});
      changed_.notify_all();
    };
  }

 private:
  struct Ended {
    Read read;
    std::exception_ptr error;
  };

  void work() noexcept {
    MutexLock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return stopping_ || !ended_.empty(); });
      if (ended_.empty()) return;
      Ended ended = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      if (!ended.error) ended.error = verify(ended.read.part);
      try {
        ended.read.done(ended.error);
      } catch (const std::exception& error) {
        log(LogLevel::kWarning,
            std::string("a storage callback threw an exception, which is a bug: ") + error.what());
      }
      ended = {};  // destroys the callback's captures before the destructor returns
      lock.lock();
      --under_way_;
      changed_.notify_all();
    }
  }

  std::exception_ptr verify(const Part& part) noexcept {
    try {
      space_.verify({&part, 1});
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  TaggedSpace& space_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Ended> ended_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t under_way_ SLUICE_GUARDED_BY(mutex_) = 0;  // reads before the end of their callback
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: uses all of the above
};

TaggedSpace::TaggedSpace(StripedSpace& space, const RunId& run) : space_(space), run_(run) {
  if (space.bytes() > 0) verifier_ = std::make_unique<Verifier>(*this);
}

TaggedSpace::~TaggedSpace() = default;

TaggedSpace::RangeId TaggedSpace::add_range(const Range& range) {
  SLUICE_CHECK(range.bytes > 0 && range.bytes <= space_.bytes() &&
               range.offset_bytes <= space_.bytes() - range.bytes);
  SLUICE_CHECK(range.block_bytes > 0 && range.block_bytes <= kMostBlockBytes);
  // A range that is added again keeps its tags, which describe bytes that are already on
  // storage.
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

// Returns the range of a part; checks that the part lies inside it.
TaggedSpace::Tagged& TaggedSpace::tagged_range(const Part& part) const {
  SLUICE_CHECK(part.range < ranges_.size());
  Tagged& tagged = *ranges_[part.range];
  SLUICE_CHECK(part.bytes > 0 && part.bytes <= tagged.range.bytes &&
               part.offset_bytes <= tagged.range.bytes - part.bytes);
  return tagged;
}

bool TaggedSpace::is_whole_blocks(const Part& part) const {
  const Range& range = tagged_range(part).range;
  const std::uint64_t end = part.offset_bytes + part.bytes;
  return part.offset_bytes % range.block_bytes == 0 &&
         (end % range.block_bytes == 0 || end == range.bytes);
}

void TaggedSpace::check_whole_blocks(const Part& part) const {
  SLUICE_CHECK_MSG(is_whole_blocks(part),
                   "a transfer of " + tagged_range(part).range.name + " cuts a block");
}

void TaggedSpace::verify(std::span<const Part> parts) {
  const std::int64_t begin_ns = time_ns();
  for (const Part& part : parts) verify_blocks(part);
  count_hashing(parts, begin_ns);
}

void TaggedSpace::tag(std::span<const Part> parts) {
  const std::int64_t begin_ns = time_ns();
  for (const Part& part : parts) tag_blocks(part);
  count_hashing(parts, begin_ns);
}

void TaggedSpace::verify_blocks(const Part& part) {
  SLUICE_DCHECK(is_whole_blocks(part));
  const Tagged& tagged = tagged_range(part);
  tagged.for_blocks(part, [&](std::uint64_t block, std::byte* data, std::uint64_t bytes) {
    if (!is_right(tagged, block, data, bytes)) read_again(tagged, block, data, bytes);
  });
}

void TaggedSpace::tag_blocks(const Part& part) {
  SLUICE_DCHECK(is_whole_blocks(part));
  Tagged& tagged = tagged_range(part);
  tagged.for_blocks(part, [&](std::uint64_t block, std::byte* data, std::uint64_t bytes) {
    BlockTag& tag = tagged.tags[block];
    tag = tag_of(run_, tagged.range.key, block, tag.version + 1, data, bytes);
  });
}

bool TaggedSpace::is_right(const Tagged& tagged, std::uint64_t block, const std::byte* data,
                           std::uint64_t bytes) const {
  const BlockTag& expected = tagged.tags[block];
  SLUICE_CHECK_MSG(expected.version > 0,
                   tagged.describe(block) + " was read from storage, but it was never written");
  return tag_of(run_, tagged.range.key, block, expected.version, data, bytes) == expected;
}

void TaggedSpace::read_again(const Tagged& tagged, std::uint64_t block, std::byte* data,
                             std::uint64_t bytes) {
  const std::uint64_t offset = tagged.range.offset_bytes + block * tagged.range.block_bytes;
  const std::string name = tagged.describe(block);
  const StripedSpace::Location place = space_.locate(offset);
  // Only this block is read again; the other blocks of the transfer were right.
  space_.transfer(StorageOp::kRead, offset, data, bytes);
  if (!is_right(tagged, block, data, bytes)) {
    throw IntegrityError(name, place.path, place.offset_bytes, bytes);
  }
  reread_blocks_.fetch_add(1);
  log(LogLevel::kWarning, name + ", " + std::to_string(bytes) + " bytes at offset " +
                              std::to_string(place.offset_bytes) + " of '" + place.path +
                              "', was wrong when it was read from storage, and right when it was "
                              "read again; check that disk and the memory of this machine");
}

// Counters are separate atomics; a reader may see one of two updates.
void TaggedSpace::count_hashing(std::span<const Part> parts, std::int64_t begin_ns) {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  hashed_bytes_.fetch_add(bytes);
  hash_ns_.fetch_add(static_cast<std::uint64_t>(time_ns() - begin_ns));
}

void TaggedSpace::submit(StorageOp op, RangeId id, std::uint64_t offset_bytes, void* data,
                         std::uint64_t bytes, StorageEngine::Callback done, std::uint64_t needed_by,
                         TagsBy tags_by) {
  const Part part{id, offset_bytes, static_cast<std::byte*>(data), bytes};
  check_whole_blocks(part);
  const Range& range = ranges_[id]->range;
  if (tags_by == TagsBy::kSpace) {
    // Tags of writes are stored before the submission; a read is verified after its end.
    if (op == StorageOp::kWrite) {
      tag({&part, 1});
    } else {
      done = verifier_->expect({part, std::move(done)});
    }
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
  return {hashed_bytes_.load(), static_cast<double>(hash_ns_.load()) * 1e-9, reread_blocks_.load()};
}

}  // namespace sluice::offload
