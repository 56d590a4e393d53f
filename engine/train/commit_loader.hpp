// Loads the state of a durable commit into the homes of this run, in whatever tier they are.
//
// Reads each saved home from its own storage files, verifies its tags, and writes the elements that
// this rank holds. Ranks of the earlier run may have had other ranges of a unit, or other parts of
// its tensors: each home that has some of this rank's elements is read and verified whole. A home
// is joined from all of them piece by piece, so that each of its blocks is written exactly once and
// has the one version that the next commit expects.
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
  void load_home(const schedule::Buffer& home, const checkpoint::SavedParts& parts,
                 offload::StorageEngine& engine);

  runtime::StateStore& store_;
  std::vector<const schedule::Buffer*> homes_;
};

}  // namespace sluice::train
