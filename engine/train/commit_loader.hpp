// Loads the state of a durable commit into the homes of this run, in whatever tier they are.
//
// Reads each saved home from its own storage files, verifies its tags, and writes the elements that
// this rank holds. Ranks of the earlier run may have had other ranges of a unit, or other parts of
// its tensors: each home that has some of this rank's elements is read and verified whole.
#pragma once

#include <vector>

#include "engine/checkpoint/saved_parts.hpp"
#include "engine/runtime/state_store.hpp"

namespace sluice::train {

class CommitLoader {
 public:
  // homes: this rank's. Both must outlive it.
  CommitLoader(runtime::StateStore& store, std::vector<const schedule::Buffer*> homes)
      : store_(store), homes_(std::move(homes)) {}

  // Throws IoError, and InputError if data differ from the commit.
  void load(const checkpoint::SavedParts& parts);

 private:
  void load_rank(const checkpoint::SavedParts& parts, const checkpoint::SavedParts::Rank& rank);
  void load_whole(const schedule::Buffer& home, checkpoint::SavedHomeReader& reader);
  void load_overlap(const schedule::Buffer& home, const runtime::SavedHome& saved,
                    checkpoint::SavedHomeReader& reader);
  // Parts of tensors that lie otherwise in the saved unit.
  void load_parts(const schedule::Buffer& home, const runtime::SavedHome& saved,
                  const checkpoint::SavedParts& parts, const checkpoint::SavedParts::Rank& rank,
                  checkpoint::SavedHomeReader& reader);
  void clear(const schedule::Buffer& home);

  runtime::StateStore& store_;
  std::vector<const schedule::Buffer*> homes_;
};

}  // namespace sluice::train
