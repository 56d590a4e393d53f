// Sums in pinned memory are added to in place. Those on storage go through staged pieces: the sum
// of a piece is read, the gradient added, and the result written back, each in parallel with its
// neighbours. The order of additions is that of sums on the device, so the bits are theirs.
#include "engine/schedule/compile/partial_sums.hpp"

#include <vector>

#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {

// A sum of a whole unit as its pieces, which an instruction on the host may use.
class PiecesOfSum {
 public:
  PiecesOfSum(StepBuilder& builder, std::int32_t unit, BufferId sum, std::size_t pieces)
      : builder_(builder),
        unit_(unit),
        sum_(sum),
        on_storage_(builder.buffer(sum).tier == Tier::kStorage),
        at_(pieces, sum) {}

  // Makes room for a piece, and reads it if it has a content.
  void bring(std::size_t i, ElemRange range, bool begins) {
    if (!on_storage_) return;
    at_[i] = builder_.add_piece(Ring::kGradients, StateKind::kGradient, unit_, range, DType::kF32,
                                builder_.gradient_version());
    if (begins) return;
    const Use from = builder_.part(sum_, range);
    builder_.move(Op::kStorageRead, Lane::kStorageRead, unit_, -1, static_cast<std::int32_t>(i),
                  from, use(i, range), from.bytes);
  }
  Use use(std::size_t i, ElemRange range) const { return builder_.part(at_[i], range); }
  void put_back(std::size_t i, ElemRange range) {
    if (!on_storage_) return;
    const Use to = builder_.part(sum_, range);
    builder_.move(Op::kStorageWrite, Lane::kStorageWrite, unit_, -1, static_cast<std::int32_t>(i),
                  use(i, range), to, to.bytes);
  }

 private:
  StepBuilder& builder_;
  std::int32_t unit_;
  BufferId sum_;
  bool on_storage_;
  std::vector<BufferId> at_;  // the sum itself, or staged pieces of it
};

}  // namespace

void emit_add_on_host(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch,
                      BufferId window, BufferId sum, bool begins) {
  const std::vector<ElemRange> pieces = builder.pieces({0, builder.unit_elems(unit)});
  PiecesOfSum sums(builder, unit, sum, pieces.size());
  std::vector<BufferId> incoming(pieces.size(), kNoId);
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        incoming[i] = builder.add_piece(Ring::kGradients, StateKind::kGradient, unit, pieces[i],
                                        builder.model().dtype, builder.gradient_version());
        const Use from = builder.part(window, pieces[i]);
        builder.move(Op::kDownload, Lane::kD2H, unit, microbatch, static_cast<std::int32_t>(i),
                     from, builder.part(incoming[i], pieces[i]), from.bytes);
        sums.bring(i, pieces[i], begins);
      },
      [&](std::size_t i) {
        Instruction& add = builder.emit(Op::kAccumulateGrad, Lane::kOptimizer, unit, microbatch);
        add.chunk = static_cast<std::int32_t>(i);
        add.reads.push_back(builder.part(incoming[i], pieces[i]));
        if (!begins) add.reads.push_back(sums.use(i, pieces[i]));
        add.writes.push_back(sums.use(i, pieces[i]));
      },
      [&](std::size_t i) { sums.put_back(i, pieces[i]); });
}

void emit_add_on_device(StepBuilder& builder, std::int32_t unit, ElemRange range, BufferId gradient,
                        std::int32_t microbatch, BufferId sum, bool begins) {
  Instruction& add = builder.emit(Op::kAccumulateGrad, Lane::kCompute, unit, microbatch);
  add.reads.push_back(builder.part(gradient, range));
  if (!begins) add.reads.push_back(builder.part(sum, range));
  add.writes.push_back(builder.part(sum, range));
}

void emit_fold(StepBuilder& builder, Lane lane, std::int32_t unit, Use into, Use from,
               std::int32_t piece) {
  Instruction& add = builder.emit(Op::kFoldGrad, lane, unit, -1);
  add.chunk = piece;
  add.reads = {into, from};
  add.writes = {into};
}

bool PartialSums::begins_group(std::int32_t microbatch) const {
  const StepOptions& options = builder_.options();
  return microbatch % (options.microbatches / options.fold_groups) == 0;
}

bool PartialSums::ends_group(std::int32_t microbatch) const {
  return begins_group(microbatch + 1);
}

void PartialSums::add(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  GroupSums& groups = groups_[unit];
  const bool begins = begins_group(microbatch);
  if (begins) groups.push(builder_.add_sum(builder_.partial_tier(unit), unit, microbatch));
  emit_add_on_host(builder_, unit, microbatch, window, groups.top(), begins);
  if (!ends_group(microbatch)) return;
  groups.complete(false, [&](BufferId into, BufferId from, std::size_t, bool) {
    fold_on_host(unit, into, from);
  });
}

BufferId PartialSums::complete(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  GroupSums& groups = groups_[unit];
  const ElemRange whole{0, builder_.unit_elems(unit)};
  const bool begins = begins_group(microbatch);
  BufferId sum = begins ? builder_.add_sum(Tier::kDevice, unit) : bring_up(unit, groups.pop());
  emit_add_on_device(builder_, unit, whole, window, microbatch, sum, begins);
  // The rank's groups are a power of two, so each sum is added to one of as many groups.
  while (groups.count() > 0) {
    const BufferId into = bring_up(unit, groups.pop());
    emit_fold(builder_, Lane::kCompute, unit, builder_.part(into, whole), builder_.part(sum, whole),
              -1);
    sum = into;
  }
  return sum;
}

void PartialSums::fold_on_host(std::int32_t unit, BufferId into, BufferId from) {
  const std::vector<ElemRange> pieces = builder_.pieces({0, builder_.unit_elems(unit)});
  PiecesOfSum left(builder_, unit, into, pieces.size());
  PiecesOfSum right(builder_, unit, from, pieces.size());
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        left.bring(i, pieces[i], false);
        right.bring(i, pieces[i], false);
      },
      [&](std::size_t i) {
        emit_fold(builder_, Lane::kOptimizer, unit, left.use(i, pieces[i]), right.use(i, pieces[i]),
                  static_cast<std::int32_t>(i));
      },
      [&](std::size_t i) { left.put_back(i, pieces[i]); });
}

// A sum that was on a lower tier, on the device.
BufferId PartialSums::bring_up(std::int32_t unit, BufferId sum) {
  const BufferId up = builder_.add_sum(Tier::kDevice, unit);
  const std::vector<ElemRange> pieces = builder_.pieces({0, builder_.unit_elems(unit)});
  PiecesOfSum from(builder_, unit, sum, pieces.size());
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) { from.bring(i, pieces[i], false); },
      [&](std::size_t i) {
        const Use to = builder_.part(up, pieces[i]);
        builder_.move(Op::kUpload, Lane::kH2D, unit, -1, static_cast<std::int32_t>(i),
                      from.use(i, pieces[i]), to, to.bytes);
      },
      [](std::size_t) {});
  return up;
}

}  // namespace sluice::schedule
