// Saves a durable run's state inside a step: the state at the step's entry is written to storage
// while the step computes, then committed.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class StateSaver {
 public:
  // Precondition: the builder's run is durable.
  explicit StateSaver(StepBuilder& builder);
  // Emits the share of writes that is due when `done` of the step's parts are emitted, if all
  // writes are due after `all` of them. `done` may pass `all`: the commit waits for the first
  // update, which exchanges between ranks delay.
  void advance(std::size_t done, std::size_t all);
  // Emits the rest and the Commit.
  void commit();

 private:
  struct Piece {
    BufferId home = kNoId;
    BufferId copy = kNoId;  // on storage
    ElemRange range;
  };
  struct Staged {
    BufferId buffer = kNoId;
    Piece piece;
  };
  void save(const Piece& piece);
  void write(const Piece& piece, BufferId from);

  StepBuilder& builder_;
  std::vector<Piece> pieces_;
  std::size_t saved_ = 0;      // of pieces_
  std::deque<Staged> staged_;  // downloaded from the device, not written yet
};

}  // namespace sluice::schedule
