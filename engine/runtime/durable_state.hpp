// Which of its two slots on storage a durable run's state lies in, and what a Commit does.
//
// State on storage has two slots (state_save.cpp). `current` holds the newest state; `committed` is
// what the log's newest record names, and nothing writes there. A step whose schedule makes new
// state finds it in `current` and leaves it in the other slot where `current` is committed, or
// becomes so in this step, and in place otherwise. Log copies are saved to the slot of the state
// that they belong to.
//
// Each piece is hashed as it is written, in blocks of 1 MiB; a commit records for every home one
// digest of its pieces', so that recovery knows torn and stale data.
// Threads: one at a time: between steps the caller's, in a step the storage_write lane's.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/program.hpp"
#include "offload/state_log.hpp"
#include "offload/striped_space.hpp"

namespace sluice {

// The digest of a piece of state: of its blocks' digests, in order.
inline constexpr std::uint64_t kDigestBlockBytes = 1u << 20;
// Calls read(offset, bytes) for each block, which returns where it lies in memory.
template <typename Read>
Digest128 piece_digest(std::uint64_t bytes, Read read) {
  std::vector<Digest128> blocks;
  for (std::uint64_t at = 0; at < bytes; at += kDigestBlockBytes) {
    const std::uint64_t block = std::min(kDigestBlockBytes, bytes - at);
    blocks.push_back(digest_of(read(at, block), block));
  }
  return digest_of(blocks);
}

// Where a commit's record says that one home's state lies.
struct SavedHome {
  StateKind kind = StateKind::kNone;
  std::int32_t unit = -1;
  DType dtype = DType::kU8;
  std::uint64_t offset = 0;  // in the striped space
  std::uint64_t bytes = 0;
  std::uint64_t piece_bytes = 0;  // of each piece; the last may be shorter
  Digest128 digest;               // of the pieces' digests, in order

  bool operator==(const SavedHome&) const = default;
};

// Room that a commit's record takes at most: `homes` homes, settings as result_settings() gives
// them.
std::uint64_t state_record_bytes(std::size_t homes,
                                 const std::map<std::string, std::string>& settings,
                                 const std::vector<std::string>& storage_paths);

class DurableState {
 public:
  // What a commit's record says, given where state lies. Called when the data are durable.
  using Record = std::function<std::string(const std::vector<SavedHome>&)>;

  // Both must outlive it.
  DurableState(StripedSpace& space, StateLog& log) : space_(space), log_(log) {}

  // Before a pass through `schedule`; record: where it commits, else empty. After a pass that
  // ended well: end(). After one that failed nothing of the run is of use but what is committed.
  void begin(const Schedule& schedule, Record record);
  void end();

  // Where in the space `place` lies in this pass: that of the state that it makes, or found.
  std::uint64_t offset_of(const Place& place, bool made) const;
  // Between passes: where byte `offset` of a home lies.
  std::uint64_t offset_of(const Buffer& home, std::uint64_t offset) const;

  // A write of versioned state is about to begin.
  void note_write(std::uint64_t offset, const void* data, std::uint64_t bytes);
  // All writes so far have ended: makes them durable, then the record that names them. Throws
  // IoError; then the record before stays the newest.
  void commit();

 private:
  struct Piece {
    std::uint64_t end = 0;
    Digest128 digest;
  };
  SavedHome describe(const Buffer& home) const;

  StripedSpace& space_;
  StateLog& log_;
  std::uint32_t current_ = 0;
  std::optional<std::uint32_t> committed_;
  std::map<std::uint64_t, Piece> pieces_;  // by begin; disjoint
  // Of the pass under way.
  const Schedule* schedule_ = nullptr;
  std::uint32_t made_ = 0;  // slot of what the pass makes
  Record record_;
};

}  // namespace sluice
