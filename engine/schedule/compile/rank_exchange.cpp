// Parts are ranges of shards. A rank brings its own shard and takes those of the others (Gather),
// or brings to each rank the part of that rank's shard and takes N - 1 parts of its own (AllToAll).
// Each use names the other rank, so an executor needs no knowledge of the partition.
#include "engine/schedule/compile/rank_exchange.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "engine/schedule/compile/group_sums.hpp"
#include "engine/schedule/compile/inner_sums.hpp"
#include "engine/schedule/compile/partial_sums.hpp"

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

std::vector<ElemRange> bucket_slices(const StepBuilder& builder, std::int32_t unit,
                                     std::int32_t rank) {
  const RankView& view = builder.view();
  const ElemRange all = builder.shard(unit, rank);
  if (view.shards_optimizer()) return {all};
  const std::uint64_t slice =
      round_up(ceil_div(builder.options().bucket_elems, static_cast<std::uint64_t>(view.ranks)),
               kLawBlockElems);
  std::uint64_t largest = 0;
  for (std::int32_t of = 0; of < view.ranks; ++of) {
    largest = std::max(largest, builder.shard(unit, of).elems());
  }
  std::vector<ElemRange> slices;
  for (std::uint64_t begin = 0; begin < largest; begin += slice) {
    slices.push_back(
        {std::min(all.begin + begin, all.end), std::min(all.begin + begin + slice, all.end)});
  }
  return slices;
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
  std::vector<std::vector<ElemRange>> slices;
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    slices.push_back(bucket_slices(builder, unit, rank));
  }
  for (std::size_t bucket = 0; bucket < slices.front().size(); ++bucket) {
    Instruction& exchange =
        emit_collective(builder, Op::kAllToAll, unit, first + view.rank * stride);
    if (slices.front().size() > 1) exchange.chunk = static_cast<std::int32_t>(bucket);
    const ElemRange taken = slices[static_cast<std::size_t>(view.rank)][bucket];
    for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
      if (rank == view.rank) continue;
      const ElemRange theirs = slices[static_cast<std::size_t>(rank)][bucket];
      if (theirs.elems() > 0) {
        exchange.reads.push_back(with_rank(builder, builder.part(window, theirs), rank));
        exchange.bytes += exchange.reads.back().bytes;
      }
      if (taken.elems() > 0) {
        const BufferId part = parts[static_cast<std::size_t>(rank)].buffer;
        exchange.writes.push_back(with_rank(builder, builder.part(part, taken), rank));
      }
    }
  }
  return parts;
}

// A gradient that needs no sum goes to its home right away.
std::vector<GradientPart> emit_arrival(StepBuilder& builder, std::int32_t unit,
                                       std::int32_t microbatch, BufferId window) {
  const RankView& view = builder.view();
  const std::int32_t from = view.arrival_of(microbatch), server = view.server_of(microbatch);
  const bool serves = view.rank == server;
  if (from == server) {
    return serves ? std::vector<GradientPart>{{microbatch, window}} : std::vector<GradientPart>{};
  }
  const ElemRange whole{0, builder.unit_elems(unit)};
  BufferId arriving = kNoId;
  if (serves) {
    arriving = builder.home_tier(StateKind::kGradient, unit) == Tier::kDevice
                   ? builder.home(StateKind::kGradient, unit)
                   : builder.add_received(StateKind::kGradient, unit, whole, builder.model().dtype,
                                          microbatch, builder.gradient_version());
  }
  Instruction& exchange = emit_collective(builder, Op::kAllToAll, unit, microbatch);
  if (serves) {
    exchange.writes.push_back(with_rank(builder, builder.part(arriving, whole), from));
    return {{microbatch, arriving}};
  }
  if (view.rank == from) {
    exchange.reads.push_back(with_rank(builder, builder.part(window, whole), server));
    exchange.bytes = exchange.reads.back().bytes;
  }
  return {};
}

namespace {

// From the server's `weights` to those of the other ranks.
void send_weights(StepBuilder& builder, std::int32_t unit, BufferId weights,
                  const std::vector<std::int32_t>& to) {
  const RankView& view = builder.view();
  const Use whole = builder.part(weights, {0, builder.unit_elems(unit)});
  const std::int32_t server = view.server_of(builder.update());
  Instruction& exchange = emit_collective(builder, Op::kAllToAll, unit, -1);
  for (const std::int32_t rank : to) {
    if (view.rank == server) {
      exchange.reads.push_back(with_rank(builder, whole, rank));
      exchange.bytes += whole.bytes;
    } else if (view.rank == rank) {
      exchange.writes.push_back(with_rank(builder, whole, server));
    }
  }
}

}  // namespace

void emit_new_weights(StepBuilder& builder, std::int32_t unit, BufferId weights) {
  const RankView& view = builder.view();
  if (!view.is_asynchronous()) return emit_gather(builder, unit, weights, weights);
  const std::int32_t to = view.arrival_of(builder.update());
  if (to != view.server_of(builder.update())) send_weights(builder, unit, weights, {to});
}

void emit_last_weights(StepBuilder& builder) {
  const RankView& view = builder.view();
  if (!view.is_asynchronous()) return;
  std::vector<std::int32_t> to;
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    if (rank != view.server_of(0) && rank != view.arrivals.back()) to.push_back(rank);
  }
  for (std::int32_t unit = 0; unit < builder.unit_count() && !to.empty(); ++unit) {
    send_weights(builder, unit, builder.home(StateKind::kWeight, unit), to);
  }
}

void emit_state_transfer(StepBuilder& builder, std::int32_t unit) {
  const RankView& view = builder.view();
  if (!view.rotates) return;
  const std::int32_t from = view.server_of(builder.update());
  const std::int32_t to = view.server_of(builder.update() + 1);
  Instruction& transfer = emit_collective(builder, Op::kAllToAll, unit, -1);
  for (const StateKind kind : kOptimizerKinds) {
    const BufferId home = builder.home(kind, unit);
    if (home == kNoId) continue;
    const Use whole = builder.part(home, {0, builder.unit_elems(unit)});
    if (view.rank == from) {
      transfer.reads.push_back(with_rank(builder, whole, to));
      transfer.bytes += whole.bytes;
    } else if (view.rank == to) {
      transfer.writes.push_back(with_rank(builder, whole, from));
    }
  }
}

void hold_parts(StepBuilder& builder, const std::vector<GradientPart>& parts) {
  for (const GradientPart& part : parts) builder.hold(part.buffer);
}

BufferId emit_fold_of_parts(StepBuilder& builder, std::int32_t unit, ElemRange range,
                            const std::vector<GradientPart>& parts) {
  GroupSums groups;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    BufferId sum = parts[k].buffer;
    // Only a micro-batch that was never added to a sum has a number.
    const bool single = builder.own_microbatch_count() == 1 && parts[k].microbatch >= 0;
    if (single) {
      sum = builder.add_received(StateKind::kGradient, unit, range, DType::kF32, -1,
                                 builder.gradient_version());
      emit_add_on_device(builder, unit, range, parts[k].buffer, parts[k].microbatch, sum, true);
    }
    groups.push(sum);
    groups.complete(k + 1 == parts.size(), [&](BufferId into, BufferId from, std::size_t, bool) {
      emit_fold(builder, Lane::kCompute, unit, builder.part(into, range), builder.part(from, range),
                -1);
    });
  }
  hold_parts(builder, parts);
  return parts.empty() ? kNoId : groups.top();
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
  emit_inner_norm_sum(builder);
  gather_between_stages(builder);
}

}  // namespace sluice::schedule
