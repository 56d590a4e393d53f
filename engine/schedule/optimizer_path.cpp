// The optimizer after the backward pass: clip factor, then the update of all units in pieces.
//
// States on the device are updated there, in place. Otherwise the update runs on the host, and each
// state of a piece is brought to pinned memory if it is not there: read i+1, update i, write i-1.
// Rules that need whole tensors take a unit as one piece.
#include "engine/schedule/pipeline_pieces.hpp"
#include "engine/schedule/step_builder.hpp"

namespace sluice {
namespace {

struct Piece {
  std::int32_t unit = 0;
  ElemRange range;
  // One per StateKind: the pinned buffer that the update works on (the home or a staged copy).
  std::array<BufferId, kStateKindCount> at{kNoId, kNoId, kNoId, kNoId, kNoId};
};

void add_workspace(StepBuilder& builder, Instruction& step, Tier tier) {
  const BufferId workspace = builder.add_update_workspace(tier, step.unit);
  if (workspace != kNoId) step.writes.push_back({workspace, 0, builder.buffer(workspace).bytes});
}

class HostOptimizer {
 public:
  explicit HostOptimizer(StepBuilder& builder) : builder_(builder) {
    for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
      if (builder.optimizer_tier(unit) == Tier::kDevice) continue;
      if (needs_whole_tensors(builder.model().optimizer)) {
        pieces_.push_back({unit, {0, builder.unit_elems(unit)}});
        continue;
      }
      for (const ElemRange range : builder.pieces(builder.unit_elems(unit))) {
        pieces_.push_back({unit, range});
      }
    }
  }

  void emit() {
    pipeline_pieces(
        pieces_.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
        [this](std::size_t i) { bring(pieces_[i]); }, [this](std::size_t i) { update(pieces_[i]); },
        [this](std::size_t i) { put_back(pieces_[i]); });
  }

 private:
  // A weight that is the rounded master is only written.
  bool read_before(StateKind kind) const {
    return kind != StateKind::kWeight || reads_weight(builder_.model().optimizer);
  }
  static bool written_after(StateKind kind) { return kind != StateKind::kGradient; }

  std::int32_t number(const Piece& piece) const {
    return static_cast<std::int32_t>(piece.range.begin / builder_.options().piece_elems);
  }

  void bring(Piece& piece) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const auto kind = static_cast<StateKind>(k);
      const BufferId home = builder_.home(kind, piece.unit);
      if (home == kNoId) continue;
      const Tier tier = builder_.home_tier(kind, piece.unit);
      if (tier == Tier::kPinned) {
        piece.at[k] = home;
        continue;
      }
      piece.at[k] = builder_.add_staged(home, piece.range, written_after(kind) ? 1 : 0);
      if (!read_before(kind)) continue;
      const bool device = tier == Tier::kDevice;
      const Use from = builder_.part(home, piece.range);
      builder_.move(device ? Op::kDownload : Op::kStorageRead,
                    device ? Lane::kD2H : Lane::kStorageRead, piece.unit, -1, number(piece), from,
                    builder_.part(piece.at[k], piece.range), from.bytes);
    }
  }

  void update(const Piece& piece) {
    Instruction& step = builder_.emit(Op::kOptimizerStep, Lane::kOptimizer, piece.unit, -1);
    step.chunk = number(piece);
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      if (piece.at[k] == kNoId) continue;
      const auto kind = static_cast<StateKind>(k);
      const Use use = builder_.part(piece.at[k], piece.range);
      if (read_before(kind)) step.reads.push_back(use);
      if (written_after(kind)) step.writes.push_back(use);
    }
    step.reads.push_back({builder_.clip_scalar(), 0, 0});
    add_workspace(builder_, step, Tier::kPinned);
  }

  void put_back(const Piece& piece) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const auto kind = static_cast<StateKind>(k);
      const BufferId home = builder_.home(kind, piece.unit);
      if (home == kNoId || home == piece.at[k] || !written_after(kind)) continue;
      const bool device = builder_.home_tier(kind, piece.unit) == Tier::kDevice;
      const Use to = builder_.part(home, piece.range);
      builder_.move(device ? Op::kUpload : Op::kStorageWrite,
                    device ? Lane::kH2D : Lane::kStorageWrite, piece.unit, -1, number(piece),
                    builder_.part(piece.at[k], piece.range), to, to.bytes);
    }
  }

  StepBuilder& builder_;
  std::vector<Piece> pieces_;
};

void emit_device_update(StepBuilder& builder, std::int32_t unit) {
  const ElemRange whole{0, builder.unit_elems(unit)};
  Instruction& step = builder.emit(Op::kOptimizerStep, Lane::kCompute, unit, -1);
  for (std::size_t k = 0; k < kStateKindCount; ++k) {
    const auto kind = static_cast<StateKind>(k);
    const BufferId home = builder.home(kind, unit);
    if (home == kNoId) continue;
    const Use use = builder.part(home, whole);
    if (kind != StateKind::kWeight || reads_weight(builder.model().optimizer)) {
      step.reads.push_back(use);
    }
    if (kind != StateKind::kGradient) step.writes.push_back(use);
  }
  step.reads.push_back({builder.clip_scalar(), 0, 0});
  add_workspace(builder, step, Tier::kDevice);
}

}  // namespace

void emit_optimizer(StepBuilder& builder) {
  Instruction& clip = builder.emit(Op::kClipFactor, Lane::kOptimizer, -1, -1);
  clip.reads.push_back({builder.norm_partials(), 0, 0});
  clip.writes.push_back({builder.clip_scalar(), 0, 0});
  for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
    if (builder.optimizer_tier(unit) == Tier::kDevice) {
      emit_device_update(builder, unit);
    }
  }
  HostOptimizer(builder).emit();
}

}  // namespace sluice
