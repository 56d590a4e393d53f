// The optimizer's updates as one software pipeline of pieces: read i+1, update i, write i-1.
//
// State on the device is updated there, in place and unit by unit. All other updates run on the
// host, piece by piece, and every state of a piece is first brought to pinned memory if it does not
// lie there. An update writes to made_home, which is the home or its shadow. With a shadow, state
// in pinned memory is read from the home and written to the shadow, and staged state is written
// back to the shadow. Rules that need whole tensors take a unit as one piece.
//
// The stream has one order of units. The generator decides when each update is due
// (UpdatePlacement) and calls emit_through() with the unit; the pipeline runs across units. State
// is read ahead even of units whose gradients are not complete, as long as the gradient itself is
// not brought: nothing else changes the state before its update.
//
// The ring of pieces is also the room for writes that lag behind. A place is taken again once its
// piece is written, so updates run ahead of the storage lane by as many bytes as the ring holds,
// and the last of a ring's writes drain during the passes that follow.
#include "engine/schedule/compile/update_stream.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"

namespace sluice::schedule {
namespace {

bool written_after(StateKind kind) {
  return kind != StateKind::kGradient;
}

}  // namespace

void emit_clip_factor(StepBuilder& builder) {
  Instruction& clip = builder.emit(Op::kClipFactor, Lane::kOptimizer, -1, -1);
  clip.reads.push_back(builder.norm_partials());
  clip.writes.push_back({builder.clip_scalar(), 0, 0});
}

UpdateStream::UpdateStream(StepBuilder& builder, std::vector<std::int32_t> order, Rules rules)
    : builder_(builder), order_(std::move(order)), rules_(rules) {
  for (const std::int32_t unit : order_) {
    const ElemRange range = builder.updated_range(unit);
    if (builder.optimizer_tier(unit) == Tier::kDevice) {
      // in place, whole
    } else if (kernels::needs_whole_tensors(builder.model().optimizer_of(unit))) {
      if (range.elems() > 0) pieces_.push_back({unit, range});
    } else {
      for (std::uint64_t begin = range.begin; begin < range.end; begin += piece_elems()) {
        pieces_.push_back({unit, {begin, std::min(begin + piece_elems(), range.end)}});
      }
    }
    pieces_through_.push_back(pieces_.size());
  }
}

void UpdateStream::emit_through(std::int32_t unit) {
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(units_done_);
  const auto at = std::find(begin, order_.end(), unit);
  if (at == order_.end()) return;  // done, or not of this stream
  for (auto next = begin; next <= at; ++next) {
    if (builder_.optimizer_tier(*next) == Tier::kDevice) emit_device_update(*next);
    if (!gathers_weights()) continue;
    emit_pieces(pieces_through_[static_cast<std::size_t>(next - order_.begin())]);
    const BufferId weights = builder_.made_home(StateKind::kWeight, *next);
    emit_new_weights(builder_, *next, weights);
  }
  units_done_ = static_cast<std::size_t>(at - order_.begin()) + 1;
  emit_pieces(pieces_through_[units_done_ - 1]);
}

// Whether each rank updates its shard of weights that all of them hold whole.
bool UpdateStream::gathers_weights() const {
  return builder_.view().shards_optimizer() && !builder_.view().shards_weights();
}

void UpdateStream::emit_rest() {
  if (!order_.empty()) emit_through(order_.back());
}

// A gradient in pinned memory is not brought, so its pieces may come before it is complete.
bool UpdateStream::may_be_brought(const Piece& piece) const {
  return rules_.gradients_complete ||
         builder_.home_tier(StateKind::kGradient, piece.unit) == Tier::kPinned;
}

// Does in portions the work that pipeline_pieces does for a stream emitted at once.
void UpdateStream::emit_pieces(std::size_t end) {
  const std::size_t ahead = lookahead();
  std::size_t limit = end;
  while (limit < pieces_.size() && may_be_brought(pieces_[limit])) ++limit;
  for (; updated_ < end; ++updated_) {
    bring_until(std::min(updated_ + std::max<std::size_t>(ahead, 1), limit));
    update(pieces_[updated_]);
    if (ahead > 0) bring_until(std::min(updated_ + ahead + 1, limit));
    put_back(pieces_[updated_]);
  }
}

void UpdateStream::bring_until(std::size_t end) {
  for (; brought_ < end; ++brought_) bring(pieces_[brought_]);
}

// A weight that is just the rounded master is written but not read.
bool UpdateStream::read_before(StateKind kind, std::int32_t unit) const {
  return kind != StateKind::kWeight || kernels::reads_weight(builder_.model().optimizer_of(unit));
}

std::uint64_t UpdateStream::piece_elems() const {
  const StepOptions& options = builder_.options();
  return options.update_piece_elems > 0 ? options.update_piece_elems : options.piece_elems;
}

std::size_t UpdateStream::lookahead() const {
  const StepOptions& options = builder_.options();
  return static_cast<std::size_t>(options.update_piece_elems > 0 ? options.update_lookahead
                                                                 : options.stream_lookahead);
}

std::int32_t UpdateStream::number(const Piece& piece) const {
  return static_cast<std::int32_t>(piece.range.begin / piece_elems());
}

void UpdateStream::bring(Piece& piece) {
  // The last pieces hold all places of the ring.
  const bool last = brought_ + lookahead() + 1 >= pieces_.size();
  for (std::size_t k = 0; k < kStateKindCount; ++k) {
    const auto kind = static_cast<StateKind>(k);
    const BufferId home = builder_.home(kind, piece.unit);
    if (home == kNoId) continue;
    const Tier tier = builder_.home_tier(kind, piece.unit);
    if (tier == Tier::kPinned) {
      piece.from[k] = home;
      piece.at[k] = builder_.made_home(kind, piece.unit);
      continue;
    }
    piece.at[k] = builder_.add_staged(Ring::kUpdates, home, piece.range,
                                      written_after(kind) ? rules_.version : rules_.version - 1);
    piece.from[k] = piece.at[k];
    if (rules_.keeps_ring && last) kept_.push_back(piece.at[k]);
    if (!read_before(kind, piece.unit)) continue;
    const bool device = tier == Tier::kDevice;
    const Use from = builder_.part(home, piece.range);
    builder_.move(device ? Op::kDownload : Op::kStorageRead,
                  device ? Lane::kD2H : Lane::kStorageRead, piece.unit, -1, number(piece), from,
                  builder_.part(piece.at[k], piece.range), from.bytes);
  }
}

void UpdateStream::add_common(Instruction& step, Tier tier) {
  if (rules_.clips) step.reads.push_back({builder_.clip_scalar(), 0, 0});
  const BufferId workspace = builder_.add_update_workspace(tier, step.unit);
  if (workspace != kNoId) step.writes.push_back({workspace, 0, builder_.buffer(workspace).bytes});
}

void UpdateStream::update(const Piece& piece) {
  Instruction& step = builder_.emit(Op::kOptimizerStep, Lane::kOptimizer, piece.unit, -1);
  step.chunk = number(piece);
  for (std::size_t k = 0; k < kStateKindCount; ++k) {
    if (piece.at[k] == kNoId) continue;
    const auto kind = static_cast<StateKind>(k);
    if (read_before(kind, piece.unit))
      step.reads.push_back(builder_.part(piece.from[k], piece.range));
    if (written_after(kind)) step.writes.push_back(builder_.part(piece.at[k], piece.range));
  }
  add_common(step, Tier::kPinned);
}

void UpdateStream::put_back(const Piece& piece) {
  for (std::size_t k = 0; k < kStateKindCount; ++k) {
    const auto kind = static_cast<StateKind>(k);
    const BufferId home = builder_.made_home(kind, piece.unit);
    if (home == kNoId || home == piece.at[k] || !written_after(kind)) continue;
    const bool device = builder_.home_tier(kind, piece.unit) == Tier::kDevice;
    const Use to = builder_.part(home, piece.range);
    builder_.move(device ? Op::kUpload : Op::kStorageWrite,
                  device ? Lane::kH2D : Lane::kStorageWrite, piece.unit, -1, number(piece),
                  builder_.part(piece.at[k], piece.range), to, to.bytes);
  }
}

void UpdateStream::emit_device_update(std::int32_t unit) {
  const ElemRange range = builder_.updated_range(unit);
  if (range.elems() == 0) return;  // other ranks update all of it
  Instruction& step = builder_.emit(Op::kOptimizerStep, Lane::kCompute, unit, -1);
  for (std::size_t k = 0; k < kStateKindCount; ++k) {
    const auto kind = static_cast<StateKind>(k);
    const BufferId home = builder_.home(kind, unit);
    if (home == kNoId) continue;
    if (read_before(kind, unit)) step.reads.push_back(builder_.part(home, range));
    if (written_after(kind)) {
      step.writes.push_back(builder_.part(builder_.made_home(kind, unit), range));
    }
  }
  add_common(step, Tier::kDevice);
}

}  // namespace sluice::schedule
