// A durable run's checkpoint, taken inside a step.
//
// The state of a durable run lies on storage in two copies. A step between commits finds the state
// in one copy and leaves it there. A step that commits finds it in that copy and leaves it in the
// other, so the state that it found stays whole until a later commit. State on storage is therefore
// never copied for a checkpoint.
//
// State in pinned or device memory is written to log copies with the same two copies. The writes go
// piece by piece from the homes themselves, spread over the step's passes. The update of a piece
// waits for the write of its old value, since `link` finds that hazard like any other. The Commit
// reads all saved state, so nothing overwrites the other copy, which holds the commit before, until
// the Commit is done.
#include "engine/schedule/compile/state_save.hpp"

#include "base/error.hpp"

namespace sluice::schedule {

StateSaver::StateSaver(StepBuilder& builder) : builder_(builder) {
  SLUICE_CHECK(builder.options().durable);
  for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const auto kind = static_cast<StateKind>(k);
      const BufferId home = builder.home(kind, unit);
      const BufferId copy = builder.saved_home(kind, unit);
      if (home == kNoId || copy == kNoId || copy == home) continue;
      if (builder.buffer(home).per_tensor) {
        pieces_.push_back({home, copy, {0, builder.unit_elems(unit)}});
        continue;
      }
      for (const ElemRange range : builder.pieces(builder.home_range(kind, unit))) {
        pieces_.push_back({home, copy, range});
      }
    }
  }
}

void StateSaver::advance(std::size_t done, std::size_t all) {
  const std::size_t due = done >= all ? pieces_.size() : pieces_.size() * done / all;
  while (saved_ < due) save(pieces_[saved_++]);
}

void StateSaver::save(const Piece& piece) {
  const Buffer& home = builder_.buffer(piece.home);
  if (home.tier == Tier::kPinned) return write(piece, piece.home);
  const BufferId staged = builder_.add_staged(Ring::kSaves, piece.home, piece.range, 0);
  const std::int32_t unit = builder_.buffer(piece.home).unit;
  const Use from = builder_.part(piece.home, piece.range);
  builder_.move(Op::kDownload, Lane::kD2H, unit, -1, builder_.buffer(staged).chunk, from,
                builder_.part(staged, piece.range), from.bytes);
  staged_.push_back({staged, piece});
  // The next pieces are downloaded while this one is written.
  if (staged_.size() <= static_cast<std::size_t>(builder_.options().stream_lookahead)) return;
  write(staged_.front().piece, staged_.front().buffer);
  staged_.pop_front();
}

void StateSaver::write(const Piece& piece, BufferId from) {
  const Use to = builder_.part(piece.copy, piece.range);
  const auto number = static_cast<std::int32_t>(piece.range.begin / builder_.options().piece_elems);
  builder_.move(Op::kStorageWrite, Lane::kStorageWrite, builder_.buffer(piece.copy).unit, -1,
                number, builder_.part(from, piece.range), to, to.bytes);
}

void StateSaver::commit() {
  advance(1, 1);
  for (const Staged& staged : staged_) write(staged.piece, staged.buffer);
  staged_.clear();
  Instruction& commit = builder_.emit(Op::kCommit, Lane::kStorageWrite, -1, -1);
  for (std::int32_t unit = 0; unit < builder_.unit_count(); ++unit) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const BufferId saved = builder_.saved_home(static_cast<StateKind>(k), unit);
      if (saved != kNoId) commit.reads.push_back({saved, 0, 0});
    }
  }
}

}  // namespace sluice::schedule
