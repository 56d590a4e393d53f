// The commits of a durable job from the view of one rank that goes on from them.
//
// The ranks of a tensor group have parts of tensors, and the positions of a part's elements follow
// from its slices. A rank whose group is of the job's size reads the homes of the ranks that had
// its place, element by element. Any other rank reads the homes of all places, and takes the
// elements of its own slices. Ranks of a context group have whole tensors, all the same.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/checkpoint/durable_recovery.hpp"
#include "engine/model/model.hpp"

namespace sluice::checkpoint {

class SavedParts {
 public:
  // The commit of a rank of the job, and the model with that rank's parts.
  struct Rank {
    const DurableFound* found = nullptr;
    const model::Model* model = nullptr;
  };

  // model: of the rank that asks. Both must outlive it. Throws InputError if commits are missing,
  // if this model cannot be cut as the job's settings say, or if a record names another slice than
  // the one that its rank has.
  SavedParts(const DurableFound& found, const model::Model& model);

  // Whether the homes that it reads lie as this rank's own.
  bool alike() const { return others_.empty(); }
  const std::vector<Rank>& ranks() const { return ranks_; }

  // Throws InputError naming the first home, or part of a tensor, of which nothing is saved. homes:
  // this rank's.
  void check(const std::vector<const schedule::Buffer*>& homes, bool is_alone) const;

  // Elements `from` and on of the saved unit are elements `to` and on of this rank's; `elems` of
  // them.
  struct Run {
    std::uint64_t from = 0, to = 0, elems = 0;
  };
  // Returns the runs of elements [saved.begin, saved.end) of a rank's unit that this rank's
  // elements [own.begin, own.end) have, ascending in both.
  std::vector<Run> runs(const Rank& rank, std::int32_t unit, const schedule::ElemRange& saved,
                        const schedule::ElemRange& own) const;

 private:
  void check_slices(const Rank& rank) const;
  void check_covered(const schedule::Buffer& home) const;

  const model::Model& model_;
  std::vector<std::unique_ptr<model::Model>> others_;  // of other places, if the job's parts differ
  std::vector<Rank> ranks_;
};

}  // namespace sluice::checkpoint
