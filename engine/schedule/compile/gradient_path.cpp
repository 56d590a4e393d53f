// The way of a gradient from the window that BackwardWeight wrote to the gradient's home.
//
// A home on the device is easy: the window is the home, or an addition on the compute lane adds the
// window to it. Otherwise the window is downloaded in pieces, and the optimizer lane adds each
// piece to the sum. The sum is the home in pinned memory, or pieces staged from storage: the
// earlier sum is read, the gradient added, and the result written back. Additions go in micro-batch
// order, as the arithmetic contract asks. After the last micro-batch the norm's partial sums of
// squares are taken of each piece, while it is in memory.
//
// Several ranks first exchange a round of gradients, one micro-batch of each rank, as computed. Each
// rank then holds N parts of its own shard and adds them in the order of micro-batches, each on the
// way above. So the sum of a shard has the bits that one rank would give it. A home that holds its
// gradient rounded (StepBuilder::rounds_gradient) gets it from a sum on the device.
//
// In a tied model the head's use of the embedding has a sum of its own. It is folded into the
// embedding's sum when both are complete, and the norm follows the fold.
#include "engine/schedule/compile/gradient_path.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {

// With one micro-batch in the whole step the gradient is its own sum and stays in 16 bits.
bool sums(const StepBuilder& builder) {
  return builder.options().microbatches > 1;
}

// The norm of a tied embedding follows its fold.
bool folded_later(const StepBuilder& builder, std::int32_t unit) {
  return builder.model().tied_elems > 0 && (unit == 0 || unit == builder.tied_unit());
}

// The norm blocks of a piece, on the optimizer lane while the piece is in pinned memory.
void emit_host_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient, ElemRange range,
                    std::int32_t piece) {
  Instruction& norm = builder.emit(Op::kGradNorm, Lane::kOptimizer, unit, -1);
  norm.chunk = piece;
  norm.reads.push_back(builder.part(gradient, range));
  norm.writes.push_back(builder.norm_partials_of(unit, range));
}

// The device computes the partials, and one copy brings them to pinned memory.
void emit_device_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient, ElemRange range) {
  const Use home = builder.norm_partials_of(unit, range);
  const BufferId partials =
      builder.add_device(BufferRole::kNormPartial, Category::kGradient, home.bytes, unit, -1);
  Instruction& norm = builder.emit(Op::kGradNorm, Lane::kCompute, unit, -1);
  norm.reads.push_back(builder.part(gradient, range));
  norm.writes.push_back({partials, 0, home.bytes});
  builder.move(Op::kDownload, Lane::kD2H, unit, -1, -1, {partials, 0, home.bytes}, home,
               home.bytes);
}

// Adds the parts to a sum on the device, which the step's first micro-batch begins.
void add_on_device(StepBuilder& builder, std::int32_t unit, ElemRange range,
                   const std::vector<GradientPart>& parts, BufferId sum) {
  for (const GradientPart& part : parts) {
    Instruction& add = builder.emit(Op::kAccumulateGrad, Lane::kCompute, unit, part.microbatch);
    add.reads.push_back(builder.part(part.buffer, range));
    if (part.microbatch > 0) add.reads.push_back(builder.part(sum, range));
    add.writes.push_back(builder.part(sum, range));
  }
}

bool is_last(const StepBuilder& builder, std::int32_t microbatch) {
  return microbatch + 1 == builder.options().microbatches;
}

// A device home takes the sum in place; the window of a single micro-batch is the home itself.
void emit_device_path(StepBuilder& builder, std::int32_t unit,
                      const std::vector<GradientPart>& parts) {
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const ElemRange range = builder.home_range(StateKind::kGradient, unit);
  if (sums(builder)) add_on_device(builder, unit, range, parts, home);
  if (is_last(builder, parts.back().microbatch) && !folded_later(builder, unit)) {
    emit_device_norm(builder, unit, home, range);
  }
}

// The gradient of one unit on its way to a home in pinned memory or on storage: one micro-batch, or
// the parts of one round. Pieces flow through three stages: bring() downloads the gradient and reads the earlier sum, add()
// adds them, and put_back() writes the sum to storage.
class HostGradientPath {
 public:
  // adds: the parts are added to a sum; else the only one is the whole gradient, in the dtype of its
  // home. sum: the pieces that hold the sum afterwards. If sums wait in pinned memory between
  // micro-batches, it holds those of the previous micro-batch before.
  HostGradientPath(StepBuilder& builder, std::int32_t unit, std::vector<GradientPart> parts,
                   bool adds, std::vector<BufferId>& sum)
      : builder_(builder),
        unit_(unit),
        parts_(std::move(parts)),
        adds_(adds),
        home_(builder.home(StateKind::kGradient, unit)),
        on_storage_(builder.home_tier(StateKind::kGradient, unit) == Tier::kStorage),
        last_(is_last(builder, parts_.back().microbatch)),
        waits_(builder.options().order == ComputeOrder::kUnit && adds),
        pieces_(builder.pieces(builder.home_range(StateKind::kGradient, unit))),
        incoming_(pieces_.size() * parts_.size(), kNoId),
        sum_(sum) {
    sum_.resize(pieces_.size(), kNoId);
  }

  void emit() {
    pipeline_pieces(
        pieces_.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
        [this](std::size_t i) { bring(i); }, [this](std::size_t i) { add(i); },
        [this](std::size_t i) { put_back(i); });
  }

 private:
  const StepModel& model() const { return builder_.model(); }

  // The i-th piece of a part, in pinned memory.
  BufferId& incoming(std::size_t i, std::size_t part) {
    return incoming_[i * parts_.size() + part];
  }

  // Down from the device; the sum so far from storage.
  void bring(std::size_t i) {
    const ElemRange range = pieces_[i];
    const auto piece = static_cast<std::int32_t>(i);
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      const bool straight_home = !adds_ && !on_storage_;
      incoming(i, k) = straight_home
                           ? home_
                           : builder_.add_piece(Ring::kGradients, StateKind::kGradient, unit_,
                                                range, model().dtype, builder_.gradient_version());
      builder_.move(Op::kDownload, Lane::kD2H, unit_, parts_[k].microbatch, piece,
                    builder_.part(parts_[k].buffer, range), builder_.part(incoming(i, k), range),
                    range.elems() * dtype_bytes(model().dtype));
    }
    const std::int32_t first = parts_.front().microbatch;
    if (!adds_) {
      sum_[i] = incoming(i, 0);
    } else if (!on_storage_) {
      sum_[i] = home_;
    } else if (!waits_ || first == 0) {
      const Ring ring = waits_ ? Ring::kSums : Ring::kGradients;
      sum_[i] = builder_.add_piece(ring, StateKind::kGradient, unit_, range, DType::kF32,
                                   builder_.gradient_version());
      if (first > 0) {
        builder_.move(Op::kStorageRead, Lane::kStorageRead, unit_, first, piece,
                      builder_.part(home_, range), builder_.part(sum_[i], range),
                      range.elems() * sizeof(float));
      }
    }
  }

  void add(std::size_t i) {
    const ElemRange range = pieces_[i];
    const auto piece = static_cast<std::int32_t>(i);
    for (std::size_t k = 0; k < parts_.size() && adds_; ++k) {
      const std::int32_t microbatch = parts_[k].microbatch;
      Instruction& add = builder_.emit(Op::kAccumulateGrad, Lane::kOptimizer, unit_, microbatch);
      add.chunk = piece;
      add.reads.push_back(builder_.part(incoming(i, k), range));
      if (microbatch > 0) add.reads.push_back(builder_.part(sum_[i], range));
      add.writes.push_back(builder_.part(sum_[i], range));
    }
    if (last_ && !folded_later(builder_, unit_))
      emit_host_norm(builder_, unit_, sum_[i], range, piece);
  }

  void put_back(std::size_t i) {
    if (!on_storage_ || (waits_ && !last_)) return;
    const ElemRange range = pieces_[i];
    const Use home = builder_.part(home_, range);
    builder_.move(Op::kStorageWrite, Lane::kStorageWrite, unit_, parts_.back().microbatch,
                  static_cast<std::int32_t>(i), builder_.part(sum_[i], range), home, home.bytes);
  }

  StepBuilder& builder_;
  std::int32_t unit_;
  std::vector<GradientPart> parts_;
  bool adds_;
  BufferId home_;
  bool on_storage_;
  bool last_;   // of the step's micro-batches
  bool waits_;  // the sum, in pinned memory, from micro-batch to micro-batch
  std::vector<ElemRange> pieces_;
  std::vector<BufferId> incoming_;  // by piece and part, in 16 bits
  std::vector<BufferId>& sum_;      // the content of the home afterwards
};

}  // namespace

// Without sums and with a home on the device, kernels write the home directly.
BufferId gradient_target(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch) {
  if (builder.home_tier(StateKind::kGradient, unit) == Tier::kDevice && !sums(builder)) {
    return builder.home(StateKind::kGradient, unit);
  }
  return builder.add_window(StateKind::kGradient, unit, builder.unit_elems(unit),
                            builder.model().dtype, microbatch, builder.gradient_version());
}

void GradientPath::emit(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  const std::vector<GradientPart> parts = emit_exchange(builder_, unit, microbatch, window);
  if (builder_.rounds_gradient(unit)) {
    sum_on_device(unit, parts);
    const std::int32_t round_end = microbatch - builder_.view().rank + builder_.view().ranks;
    if (is_last(builder_, round_end - 1) && !folded_later(builder_, unit)) finish_rounded(unit);
  } else if (parts.empty()) {
    // Other ranks own all of the unit.
  } else if (builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice) {
    emit_device_path(builder_, unit, parts);
  } else {
    HostGradientPath(builder_, unit, parts, sums(builder_), waiting_[unit]).emit();
  }
}

void GradientPath::sum_on_device(std::int32_t unit, const std::vector<GradientPart>& parts) {
  if (parts.empty()) return;
  const ElemRange own = builder_.own_shard(unit);
  const auto [sum, fresh] = sums_.try_emplace(unit, kNoId);
  if (fresh) {
    sum->second = builder_.add_received(StateKind::kGradient, unit, own, DType::kF32, -1,
                                        builder_.gradient_version());
  }
  add_on_device(builder_, unit, own, parts, sum->second);
}

// Rounds the sum of the rank's shard. Without shards of the optimizer's state every rank applies the
// whole gradient, so each gathers the shards of the others; the norm is still taken once.
void GradientPath::finish_rounded(std::int32_t unit) {
  const ElemRange own = builder_.own_shard(unit);
  const BufferId home = builder_.home(StateKind::kGradient, unit);
  const bool on_device = builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice;
  if (own.elems() > 0) {
    const BufferId rounded =
        on_device ? home
                  : builder_.add_received(StateKind::kGradient, unit, own, builder_.model().dtype,
                                          -1, builder_.gradient_version());
    Instruction& round = builder_.emit(Op::kRoundGrad, Lane::kCompute, unit, -1);
    round.reads.push_back(builder_.part(sums_.at(unit), own));
    round.writes.push_back(builder_.part(rounded, own));
    if (on_device) {
      emit_device_norm(builder_, unit, home, own);
    } else {
      const std::int32_t last = builder_.options().microbatches - 1;
      HostGradientPath(builder_, unit, {{last, rounded}}, false, waiting_[unit]).emit();
    }
  }
  if (builder_.view().shards_optimizer()) return;
  SLUICE_CHECK(on_device);
  emit_gather(builder_, unit, home, home);
}

namespace {

void emit_fold(StepBuilder& builder, Lane lane, Use into, Use from, std::int32_t piece) {
  Instruction& add = builder.emit(Op::kFoldGrad, lane, 0, -1);
  add.chunk = piece;
  add.reads = {into, from};
  add.writes = {into};
}

// Folds in pinned memory. A home on storage is staged piece by piece.
void fold_on_host(StepBuilder& builder, ElemRange shared, ElemRange rest) {
  const BufferId home = builder.home(StateKind::kGradient, 0);
  const BufferId tied = builder.home(StateKind::kGradient, builder.tied_unit());
  // Pieces of the shared tensor, then pieces of the rest, so that a fold never reads past it.
  std::vector<ElemRange> pieces = builder.pieces(shared);
  const std::size_t folded = pieces.size();
  for (const ElemRange range : builder.pieces(rest)) pieces.push_back(range);
  const DType dtype = builder.buffer(home).dtype;
  std::vector<BufferId> sums_of(pieces.size(), home);
  std::vector<BufferId> tied_of(pieces.size(), tied);
  const auto read = [&](BufferId from, std::int32_t unit, std::size_t i) {
    const BufferId staged = builder.add_piece(Ring::kTiedFold, StateKind::kGradient, unit,
                                              pieces[i], dtype, builder.gradient_version());
    const Use use = builder.part(from, pieces[i]);
    builder.move(Op::kStorageRead, Lane::kStorageRead, unit, -1, static_cast<std::int32_t>(i), use,
                 builder.part(staged, pieces[i]), use.bytes);
    return staged;
  };
  const bool on_storage = builder.home_tier(StateKind::kGradient, 0) == Tier::kStorage;
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        if (!on_storage) return;
        sums_of[i] = read(home, 0, i);
        if (i < folded) tied_of[i] = read(tied, builder.tied_unit(), i);
      },
      [&](std::size_t i) {
        const auto piece = static_cast<std::int32_t>(i);
        if (i < folded) {
          emit_fold(builder, Lane::kOptimizer, builder.part(sums_of[i], pieces[i]),
                    builder.part(tied_of[i], pieces[i]), piece);
        }
        emit_host_norm(builder, 0, sums_of[i], pieces[i], piece);
      },
      [&](std::size_t i) {
        if (!on_storage || i >= folded) return;
        const Use use = builder.part(home, pieces[i]);
        builder.move(Op::kStorageWrite, Lane::kStorageWrite, 0, -1, static_cast<std::int32_t>(i),
                     builder.part(sums_of[i], pieces[i]), use, use.bytes);
      });
}

}  // namespace

void GradientPath::fold_tied() {
  if (builder_.model().tied_elems == 0) return;
  const std::int32_t tied_unit = builder_.tied_unit();
  const ElemRange shared = builder_.own_shard(tied_unit);
  const ElemRange own = builder_.own_shard(0);
  if (builder_.rounds_gradient(0)) {
    if (shared.elems() > 0) {
      emit_fold(builder_, Lane::kCompute, builder_.part(sums_.at(0), shared),
                builder_.part(sums_.at(tied_unit), shared), -1);
    }
    finish_rounded(0);
  } else if (own.elems() == 0) {
    // Other ranks own all of the unit.
  } else if (builder_.home_tier(StateKind::kGradient, 0) == Tier::kDevice) {
    const BufferId home = builder_.home(StateKind::kGradient, 0);
    if (shared.elems() > 0) {
      const BufferId tied = builder_.home(StateKind::kGradient, tied_unit);
      emit_fold(builder_, Lane::kCompute, builder_.part(home, shared), builder_.part(tied, shared),
                -1);
    }
    emit_device_norm(builder_, 0, home, own);
  } else {
    fold_on_host(builder_, shared, {std::max(own.begin, builder_.model().tied_elems), own.end});
  }
}

}  // namespace sluice::schedule
