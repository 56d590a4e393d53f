// Parts are ranges of shards. A rank brings its own shard and takes those of the others (Gather), or
// brings to each rank the part of that rank's shard and takes N - 1 parts of its own (AllToAll). Each
// use names the other rank, so an executor needs no knowledge of the partition.
#include "engine/schedule/compile/rank_exchange.hpp"

namespace sluice::schedule {
namespace {

Instruction& emit_collective(StepBuilder& builder, Op op, std::int32_t unit,
                             std::int32_t microbatch) {
  Instruction& instruction = builder.emit(op, Lane::kComm, unit, microbatch);
  instruction.group = builder.data_group();
  return instruction;
}

// A part that comes from or goes to a data-parallel rank, named by its number in the world.
Use with_rank(const StepBuilder& builder, Use use, std::int32_t data_rank) {
  use.peer = builder.world_rank(builder.pipeline().rank, data_rank);
  return use;
}

}  // namespace

void emit_gather(StepBuilder& builder, std::int32_t unit, BufferId from, BufferId window) {
  const RankView& view = builder.view();
  if (view.is_alone()) return;
  Instruction& gather = emit_collective(builder, Op::kGather, unit, -1);
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    const ElemRange shard = builder.shard(unit, rank);
    if (shard.elems() == 0) continue;
    const bool own = rank == view.rank;
    if (own) {
      gather.reads.push_back(builder.part(from, shard));
      gather.bytes = static_cast<std::uint64_t>(view.ranks - 1) * gather.reads.back().bytes;
    }
    if (own && from == window) continue;  // it is in its place
    gather.writes.push_back(with_rank(builder, builder.part(window, shard), rank));
  }
}

std::vector<GradientPart> emit_exchange(StepBuilder& builder, std::int32_t unit, BufferId window,
                                        std::int32_t first, std::int32_t stride) {
  const RankView& view = builder.view();
  if (view.is_alone()) return {{first, window}};
  const ElemRange own = builder.own_shard(unit);
  const DType dtype = builder.buffer(window).dtype;
  std::vector<GradientPart> parts;
  for (std::int32_t rank = 0; rank < view.ranks && own.elems() > 0; ++rank) {
    BufferId part = window;
    if (rank != view.rank) {
      part = builder.add_received(StateKind::kGradient, unit, own, dtype, first + rank * stride,
                                  builder.gradient_version());
    }
    parts.push_back({first + rank * stride, part});
  }
  Instruction& exchange = emit_collective(builder, Op::kAllToAll, unit, first + view.rank * stride);
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    if (rank == view.rank) continue;
    const ElemRange theirs = builder.shard(unit, rank);
    if (theirs.elems() > 0) {
      exchange.reads.push_back(with_rank(builder, builder.part(window, theirs), rank));
      exchange.bytes += exchange.reads.back().bytes;
    }
    if (own.elems() > 0) {
      const BufferId part = parts[static_cast<std::size_t>(rank)].buffer;
      exchange.writes.push_back(with_rank(builder, builder.part(part, own), rank));
    }
  }
  return parts;
}

namespace {

void gather_between_data_ranks(StepBuilder& builder) {
  const RankView& view = builder.view();
  if (view.is_alone()) return;
  Instruction& gather = emit_collective(builder, Op::kGather, -1, -1);
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
      if (!builder.owns(unit)) continue;
      const ElemRange shard = builder.shard(unit, rank);
      const Use partials = builder.norm_partials_of(unit, shard);
      if (shard.elems() == 0 || partials.bytes == 0) continue;
      if (rank != view.rank) {
        gather.writes.push_back(with_rank(builder, partials, rank));
        continue;
      }
      gather.reads.push_back(partials);
      gather.bytes += static_cast<std::uint64_t>(view.ranks - 1) * partials.bytes;
    }
  }
}

void gather_between_stages(StepBuilder& builder) {
  const StageView& pipeline = builder.pipeline();
  if (pipeline.is_alone()) return;
  Instruction& gather = builder.emit(Op::kGather, Lane::kComm, -1, -1);
  gather.group = builder.pipeline_group();
  for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
    Use partials = builder.norm_partials_of(unit, {0, builder.unit_elems(unit)});
    if (partials.bytes == 0) continue;
    if (builder.owns(unit)) {
      gather.bytes += static_cast<std::uint64_t>(pipeline.ranks() - 1) * partials.bytes;
      gather.reads.push_back(partials);
    } else {
      partials.peer = builder.world_rank(pipeline.rank_of(unit), builder.view().rank);
      gather.writes.push_back(partials);
    }
  }
}

}  // namespace

void emit_norm_gather(StepBuilder& builder) {
  gather_between_data_ranks(builder);
  gather_between_stages(builder);
}

}  // namespace sluice::schedule
