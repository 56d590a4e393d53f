// A group of two ranks. The sum is an AllToAll in which one of them brings a part, and the weights
// are a Gather in which one of them does, so the checks follow their content as in any collective.
#include "engine/schedule/compile/tied_stages.hpp"

#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {

std::int32_t peer_of(const StepBuilder& builder) {
  const std::int32_t other = builder.owns(0) ? builder.unit_count() - 1 : 0;
  return builder.world_rank(builder.pipeline().rank_of(other), builder.view().rank);
}

Instruction& emit_between(StepBuilder& builder, Op op, std::int32_t unit) {
  Instruction& instruction = builder.emit(op, Lane::kComm, unit, -1);
  instruction.group = builder.tied_group();
  return instruction;
}

void emit_weights(StepBuilder& builder, Use part) {
  Instruction& gather = emit_between(builder, Op::kGather, 0);
  if (builder.owns(0)) {
    gather.reads.push_back(part);
    gather.bytes = part.bytes;
  } else {
    part.peer = peer_of(builder);
    gather.writes.push_back(part);
  }
}

}  // namespace

void emit_tied_sum(StepBuilder& builder, BufferId buffer, ElemRange range) {
  Instruction& exchange = emit_between(builder, Op::kAllToAll, builder.tied_unit());
  Use part = builder.part(buffer, range);
  part.peer = peer_of(builder);
  if (builder.owns(0)) {
    exchange.writes.push_back(part);
  } else {
    exchange.reads.push_back(part);
    exchange.bytes = part.bytes;
  }
}

// Homes on storage are staged piece by piece on both ranks.
void emit_tied_weights(StepBuilder& builder, std::int32_t version) {
  if (!builder.ties_ranks() || !(builder.owns(0) || builder.owns_head())) return;
  const ElemRange range = builder.home_range(StateKind::kWeight, 0);
  if (range.elems() == 0) return;
  const BufferId home = builder.made_home(StateKind::kWeight, 0);
  if (builder.home_tier(StateKind::kWeight, 0) != Tier::kStorage) {
    return emit_weights(builder, builder.part(home, range));
  }
  const std::vector<ElemRange> pieces = builder.pieces(range);
  std::vector<BufferId> staged(pieces.size(), kNoId);
  const auto stage = [&](std::size_t i) {
    staged[i] = builder.add_staged(Ring::kTiedFold, home, pieces[i], version);
  };
  const auto move = [&](Op op, Lane lane, std::size_t i, BufferId from, BufferId to) {
    const Use use = builder.part(from, pieces[i]);
    builder.move(op, lane, 0, -1, static_cast<std::int32_t>(i), use, builder.part(to, pieces[i]),
                 use.bytes);
  };
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        if (!builder.owns(0)) return;
        stage(i);
        move(Op::kStorageRead, Lane::kStorageRead, i, home, staged[i]);
      },
      [&](std::size_t i) {
        if (!builder.owns(0)) stage(i);
        emit_weights(builder, builder.part(staged[i], pieces[i]));
      },
      [&](std::size_t i) {
        if (builder.owns(0)) return;
        move(Op::kStorageWrite, Lane::kStorageWrite, i, staged[i], home);
      });
}

}  // namespace sluice::schedule
