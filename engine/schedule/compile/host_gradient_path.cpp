// In the order "unit" a sum's pieces wait in pinned memory for the next micro-batch, which is the
// next item, so a home on storage is written once. Else each micro-batch reads and writes the sum
// there.
#include "engine/schedule/compile/host_gradient_path.hpp"

#include <utility>

#include "engine/schedule/compile/pipeline_pieces.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"

namespace sluice::schedule {

HostGradientPath::HostGradientPath(StepBuilder& builder, std::int32_t unit,
                                   std::vector<GradientPart> parts, How how,
                                   std::vector<BufferId>& sum)
    : builder_(builder),
      unit_(unit),
      parts_(std::move(parts)),
      how_(how),
      home_(builder.home(StateKind::kGradient, unit)),
      on_storage_(builder.home_tier(StateKind::kGradient, unit) == Tier::kStorage),
      waits_(builder.options().order == ComputeOrder::kUnit && how.adds),
      pieces_(builder.pieces(builder.home_range(StateKind::kGradient, unit))),
      incoming_(pieces_.size() * parts_.size(), kNoId),
      sum_(sum) {
  sum_.resize(pieces_.size(), kNoId);
}

void HostGradientPath::emit() {
  pipeline_pieces(
      pieces_.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [this](std::size_t i) { bring(i); }, [this](std::size_t i) { add(i); },
      [this](std::size_t i) { put_back(i); });
}

// Down from the device; the sum so far from storage.
void HostGradientPath::bring(std::size_t i) {
  const ElemRange range = pieces_[i];
  const auto piece = static_cast<std::int32_t>(i);
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const bool straight_home = !how_.adds && !on_storage_;
    incoming(i, k) = straight_home
                         ? home_
                         : builder_.add_piece(Ring::kGradients, StateKind::kGradient, unit_, range,
                                              model().dtype, builder_.gradient_version());
    builder_.move(Op::kDownload, Lane::kD2H, unit_, parts_[k].microbatch, piece,
                  builder_.part(parts_[k].buffer, range), builder_.part(incoming(i, k), range),
                  range.elems() * dtype_bytes(model().dtype));
  }
  if (i + 1 == pieces_.size()) hold_parts(builder_, parts_);
  bring_sum(i);
}

void HostGradientPath::bring_sum(std::size_t i) {
  const ElemRange range = pieces_[i];
  if (!how_.adds) {
    sum_[i] = incoming(i, 0);
  } else if (!on_storage_) {
    sum_[i] = home_;
  } else if (!waits_ || how_.begins) {
    const Ring ring = waits_ ? Ring::kSums : Ring::kGradients;
    sum_[i] = builder_.add_piece(ring, StateKind::kGradient, unit_, range, DType::kF32,
                                 builder_.gradient_version());
    if (how_.begins) return;
    builder_.move(Op::kStorageRead, Lane::kStorageRead, unit_, parts_.front().microbatch,
                  static_cast<std::int32_t>(i), builder_.part(home_, range),
                  builder_.part(sum_[i], range), range.elems() * sizeof(float));
  }
}

void HostGradientPath::add(std::size_t i) {
  const ElemRange range = pieces_[i];
  const auto piece = static_cast<std::int32_t>(i);
  for (std::size_t k = 0; k < parts_.size() && how_.adds; ++k) {
    const std::int32_t microbatch = parts_[k].microbatch;
    Instruction& add = builder_.emit(Op::kAccumulateGrad, Lane::kOptimizer, unit_, microbatch);
    add.chunk = piece;
    add.reads.push_back(builder_.part(incoming(i, k), range));
    if (!how_.begins || k > 0) add.reads.push_back(builder_.part(sum_[i], range));
    add.writes.push_back(builder_.part(sum_[i], range));
  }
  if (how_.normed) emit_host_norm(builder_, unit_, sum_[i], range, piece);
}

void HostGradientPath::put_back(std::size_t i) {
  if (!on_storage_ || (waits_ && !how_.ends)) return;
  const ElemRange range = pieces_[i];
  const Use home = builder_.part(home_, range);
  builder_.move(Op::kStorageWrite, Lane::kStorageWrite, unit_, parts_.back().microbatch,
                static_cast<std::int32_t>(i), builder_.part(sum_[i], range), home, home.bytes);
}

void emit_host_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient, ElemRange range,
                    std::int32_t piece) {
  Instruction& norm = builder.emit(Op::kGradNorm, Lane::kOptimizer, unit, -1);
  norm.chunk = piece;
  norm.reads.push_back(builder.part(gradient, range));
  norm.writes.push_back(builder.norm_partials_of(unit, range));
}

}  // namespace sluice::schedule
