// The way of a gradient from the window that BackwardWeight wrote to the gradient's home.
//
// A home on the device is easy: the window is the home, or an addition on the compute lane adds the
// window to it. Otherwise the window is downloaded in pieces, and the optimizer lane adds each
// piece to the sum. The sum is the home in pinned memory, or pieces staged from storage: the
// earlier sum is read, the gradient added, and the result written back. Additions go in micro-batch
// order, as the arithmetic contract asks. After the last micro-batch the norm's partial sums of
// squares are taken of each piece, while it is in memory.
//
// In a tied model the head's use of the embedding has a sum of its own. It is folded into the
// embedding's sum when both are complete, and the norm follows the fold.
#include "engine/schedule/compile/gradient_path.hpp"

#include "base/error.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {

// With one micro-batch the gradient is its own sum and stays in 16 bits.
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
void emit_device_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient) {
  const ElemRange whole{0, builder.unit_elems(unit)};
  const Use home = builder.norm_partials_of(unit, whole);
  const BufferId partials =
      builder.add_device(BufferRole::kNormPartial, Category::kGradient, home.bytes, unit, -1);
  Instruction& norm = builder.emit(Op::kGradNorm, Lane::kCompute, unit, -1);
  norm.reads.push_back(builder.part(gradient, whole));
  norm.writes.push_back({partials, 0, home.bytes});
  builder.move(Op::kDownload, Lane::kD2H, unit, -1, -1, {partials, 0, home.bytes}, home,
               home.bytes);
}

// A device home takes the sum in place; the window of a single micro-batch is the home itself.
void emit_device_path(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch,
                      BufferId window) {
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const ElemRange whole{0, builder.unit_elems(unit)};
  if (sums(builder)) {
    Instruction& add = builder.emit(Op::kAccumulateGrad, Lane::kCompute, unit, microbatch);
    add.reads.push_back(builder.part(window, whole));
    if (microbatch > 0) add.reads.push_back(builder.part(home, whole));
    add.writes.push_back(builder.part(home, whole));
  }
  const bool last = microbatch + 1 == builder.options().microbatches;
  if (last && !folded_later(builder, unit)) emit_device_norm(builder, unit, home);
}

// One micro-batch's gradient of one unit on its way to a home in pinned memory or on storage.
// Pieces flow through three stages: bring() downloads the gradient and reads the earlier sum, add()
// adds them, and put_back() writes the sum to storage.
class HostGradientPath {
 public:
  // sum: the pieces that hold the sum afterwards. If sums wait in pinned memory between
  // micro-batches, it holds those of the previous micro-batch before.
  HostGradientPath(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch,
                   BufferId window, std::vector<BufferId>& sum)
      : builder_(builder),
        unit_(unit),
        microbatch_(microbatch),
        window_(window),
        home_(builder.home(StateKind::kGradient, unit)),
        on_storage_(builder.home_tier(StateKind::kGradient, unit) == Tier::kStorage),
        last_(microbatch + 1 == builder.options().microbatches),
        waits_(builder.options().order == ComputeOrder::kUnit && sums(builder)),
        pieces_(builder.pieces(builder.unit_elems(unit))),
        incoming_(pieces_.size(), kNoId),
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

  // Down from the device; the sum so far from storage.
  void bring(std::size_t i) {
    const ElemRange range = pieces_[i];
    const auto piece = static_cast<std::int32_t>(i);
    const bool straight_home = !sums(builder_) && !on_storage_;
    incoming_[i] = straight_home
                       ? home_
                       : builder_.add_piece(Ring::kGradients, StateKind::kGradient, unit_, range,
                                            model().dtype, builder_.gradient_version());
    builder_.move(Op::kDownload, Lane::kD2H, unit_, microbatch_, piece,
                  builder_.part(window_, range), builder_.part(incoming_[i], range),
                  range.elems() * dtype_bytes(model().dtype));
    if (!sums(builder_)) {
      sum_[i] = incoming_[i];
    } else if (!on_storage_) {
      sum_[i] = home_;
    } else if (!waits_ || microbatch_ == 0) {
      const Ring ring = waits_ ? Ring::kSums : Ring::kGradients;
      sum_[i] = builder_.add_piece(ring, StateKind::kGradient, unit_, range, DType::kF32,
                                   builder_.gradient_version());
      if (microbatch_ > 0) {
        builder_.move(Op::kStorageRead, Lane::kStorageRead, unit_, microbatch_, piece,
                      builder_.part(home_, range), builder_.part(sum_[i], range),
                      range.elems() * sizeof(float));
      }
    }
  }

  void add(std::size_t i) {
    const ElemRange range = pieces_[i];
    const auto piece = static_cast<std::int32_t>(i);
    if (sums(builder_)) {
      Instruction& add = builder_.emit(Op::kAccumulateGrad, Lane::kOptimizer, unit_, microbatch_);
      add.chunk = piece;
      add.reads.push_back(builder_.part(incoming_[i], range));
      if (microbatch_ > 0) add.reads.push_back(builder_.part(sum_[i], range));
      add.writes.push_back(builder_.part(sum_[i], range));
    }
    if (last_ && !folded_later(builder_, unit_))
      emit_host_norm(builder_, unit_, sum_[i], range, piece);
  }

  void put_back(std::size_t i) {
    if (!on_storage_ || (waits_ && !last_)) return;
    const ElemRange range = pieces_[i];
    const Use home = builder_.part(home_, range);
    builder_.move(Op::kStorageWrite, Lane::kStorageWrite, unit_, microbatch_,
                  static_cast<std::int32_t>(i), builder_.part(sum_[i], range), home, home.bytes);
  }

  StepBuilder& builder_;
  std::int32_t unit_;
  std::int32_t microbatch_;
  BufferId window_;
  BufferId home_;
  bool on_storage_;
  bool last_;   // micro-batch
  bool waits_;  // the sum, in pinned memory, from micro-batch to micro-batch
  std::vector<ElemRange> pieces_;
  std::vector<BufferId> incoming_;  // this micro-batch's gradient, in 16 bits
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
  if (builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice) {
    emit_device_path(builder_, unit, microbatch, window);
  } else {
    HostGradientPath(builder_, unit, microbatch, window, waiting_[unit]).emit();
  }
}

void emit_tied_fold(StepBuilder& builder) {
  const std::uint64_t tied_elems = builder.model().tied_elems;
  if (tied_elems == 0) return;
  const BufferId home = builder.home(StateKind::kGradient, 0);
  const BufferId tied = builder.home(StateKind::kGradient, builder.tied_unit());
  const Tier tier = builder.home_tier(StateKind::kGradient, 0);
  const auto fold = [&](Lane lane, Use into, Use from, std::int32_t piece) {
    Instruction& add = builder.emit(Op::kFoldGrad, lane, 0, -1);
    add.chunk = piece;
    add.reads = {into, from};
    add.writes = {into};
  };
  if (tier == Tier::kDevice) {
    const ElemRange shared{0, tied_elems};
    fold(Lane::kCompute, builder.part(home, shared), builder.part(tied, shared), -1);
    emit_device_norm(builder, 0, home);
    return;
  }

  // Pieces of the shared tensor, then pieces of the rest, so that a fold never reads past it.
  std::vector<ElemRange> pieces = builder.pieces(tied_elems);
  for (ElemRange rest : builder.pieces(builder.unit_elems(0) - tied_elems)) {
    pieces.push_back({rest.begin + tied_elems, rest.end + tied_elems});
  }
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
  const bool on_storage = tier == Tier::kStorage;
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        if (!on_storage) return;
        sums_of[i] = read(home, 0, i);
        if (pieces[i].end <= tied_elems) tied_of[i] = read(tied, builder.tied_unit(), i);
      },
      [&](std::size_t i) {
        const auto piece = static_cast<std::int32_t>(i);
        if (pieces[i].end <= tied_elems) {
          fold(Lane::kOptimizer, builder.part(sums_of[i], pieces[i]),
               builder.part(tied_of[i], pieces[i]), piece);
        }
        emit_host_norm(builder, 0, sums_of[i], pieces[i], piece);
      },
      [&](std::size_t i) {
        if (!on_storage || pieces[i].end > tied_elems) return;
        const Use use = builder.part(home, pieces[i]);
        builder.move(Op::kStorageWrite, Lane::kStorageWrite, 0, -1, static_cast<std::int32_t>(i),
                     builder.part(sums_of[i], pieces[i]), use, use.bytes);
      });
}

}  // namespace sluice::schedule
