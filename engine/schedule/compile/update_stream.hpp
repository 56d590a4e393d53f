// The optimizer's part of a step: the clip factor and the updates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// Adds all norm partials to the norm, and computes the factor by which updates multiply
// gradients.
void emit_clip_factor(StepBuilder& builder);

// The updates of some units, one after another, as one stream of pieces across the units' borders.
class UpdateStream {
 public:
  struct Rules {
    bool gradients_complete = false;  // those of all units, from the first update on
    bool clips = false;               // the updates wait for the clip factor
    std::int32_t version = 1;         // of the state that they make
    bool keeps_ring = false;          // its memory, to the end of the step
  };
  // order: each of the units once.
  UpdateStream(StepBuilder& builder, std::vector<std::int32_t> order, Rules rules);
  // Emits the updates up to that of `unit`, as far as they have not been emitted. Does nothing for
  // a unit that is not of this stream.
  void emit_through(std::int32_t unit);
  void emit_rest();
  // Staged pieces that keep their memory to the end of the step.
  std::span<const BufferId> kept() const { return kept_; }

 private:
  struct Piece {
    std::int32_t unit = 0;
    ElemRange range;
    // One per StateKind: `at` is the pinned buffer that the update writes, the home or a staged
    // copy; `from` is the buffer that it reads, which differs if the home has a shadow.
    std::array<BufferId, kStateKindCount> at{kNoId, kNoId, kNoId, kNoId, kNoId};
    std::array<BufferId, kStateKindCount> from{kNoId, kNoId, kNoId, kNoId, kNoId};
  };
  bool gathers_weights() const;
  bool read_before(StateKind kind, std::int32_t unit) const;
  bool may_be_brought(const Piece& piece) const;
  std::uint64_t piece_elems() const;
  std::size_t lookahead() const;
  std::int32_t number(const Piece& piece) const;
  void emit_device_update(std::int32_t unit);
  void emit_pieces(std::size_t end);
  void bring_until(std::size_t end);
  void bring(Piece& piece);
  void update(const Piece& piece);
  void put_back(const Piece& piece);
  void add_common(Instruction& step, Tier tier);

  StepBuilder& builder_;
  std::vector<std::int32_t> order_;
  Rules rules_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> pieces_through_;  // by index into order_: pieces up to the unit's last
  std::size_t units_done_ = 0;
  std::size_t brought_ = 0;  // pieces
  std::size_t updated_ = 0;
  std::vector<BufferId> kept_;
};

}  // namespace sluice::schedule
