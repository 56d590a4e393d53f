// The two copies of a durable run's state on storage, and the work of a Commit.
//
// State on storage has two copies (state_save.cpp). `current` holds the newest state; `committed`
// is the copy of the log's newest record, and nothing writes there. A step that makes new state
// reads the old state from `current`. It writes the new state in place, or to the other copy if
// `current` is committed or becomes so in this step. Log copies are saved to the copy of the state
// that they belong to.
//
// A commit records for every home one digest of its blocks' tags (offload/tagged_space.hpp), so
// that recovery detects torn and stale data. Threads: one at a time: between steps the caller's, in
// a step the storage_write lane's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/program.hpp"
#include "offload/state_log.hpp"

namespace sluice::runtime {

// The place of one home's state, as a commit's record has it.
struct SavedHome {
  StateKind kind = StateKind::kNone;
  std::int32_t unit = -1;
  DType dtype = DType::kU8;
  std::uint64_t offset = 0;  // in the striped space
  std::uint64_t bytes = 0;
  // The key of its range in the tagged space; every block was written `version` times.
  std::uint64_t key = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t version = 0;
  offload::Digest128 digest;     // of the blocks' tags, in order
  std::uint64_t first_elem = 0;  // of the unit; above 0 for a shard of a rank

  // The elements of the unit that it holds.
  schedule::ElemRange range() const;
  bool operator==(const SavedHome&) const = default;
};

// Room that a commit's record takes at most: `homes` homes, settings as result_settings() gives
// them, paths: of the files' directories and the log's.
std::uint64_t state_record_bytes(std::size_t homes,
                                 const std::map<std::string, std::string>& settings,
                                 const std::vector<std::string>& paths);

class DurableState {
 public:
  // Makes the text of a commit's record from the places of state. Called once the data are durable.
  using Record = std::function<std::string(const std::vector<SavedHome>&)>;

  // Both must outlive it. all_committed: called once this rank's record is on the disk, and returns
  // when those of all ranks are. Until then nothing overwrites the commit before. Empty: alone.
  DurableState(RunMemory& memory, offload::StateLog& log, std::function<void()> all_committed = {})
      : memory_(memory), log_(log), all_committed_(std::move(all_committed)) {}

  // Call begin() before a pass through `schedule`, and end() after a pass that succeeded. record:
  // empty unless the pass commits. After a failed pass only the committed state is of use.
  void begin(const schedule::Schedule& schedule, Record record);
  void end();

  // Returns the copy of `place` in this pass: for the state that the pass makes if `made`, else for
  // the state that it finds.
  std::uint32_t copy_of(const Place& place, bool made) const;
  // Returns the copy of a home between passes.
  std::uint32_t copy_of(const schedule::Buffer& home) const {
    return home.versions == 1 ? 0 : current_;
  }

  // Between passes: whether the newest state lies in the committed copy, where nothing may be
  // written.
  bool is_committed() const { return committed_ == current_; }
  // Between passes: the newest state is that of the other copy from here on. The caller has copied
  // all state on storage there, or is about to.
  void switch_copy() { current_ = 1 - current_; }

  // All writes so far have ended: makes them durable, then the record that names them. Throws
  // IoError; then the record before stays the newest.
  void commit();

 private:
  SavedHome describe(const schedule::Buffer& home);

  RunMemory& memory_;
  offload::StateLog& log_;
  std::function<void()> all_committed_;
  std::uint32_t current_ = 0;
  std::optional<std::uint32_t> committed_;
  // The schedule of the running pass.
  const schedule::Schedule* schedule_ = nullptr;
  std::uint32_t made_ = 0;  // the copy of the state that the pass makes
  Record record_;
};

}  // namespace sluice::runtime
