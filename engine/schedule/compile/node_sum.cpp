// Both exchanges are collectives of all data-parallel ranks, of which each names the ranks that it
// has parts for. So no rank needs groups of its own, and all enter the same collectives in the same
// order.
#include "engine/schedule/compile/node_sum.hpp"

#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::schedule {

NodeSum::NodeSum(StepBuilder& builder, std::int32_t unit, BufferId partial)
    : builder_(&builder),
      unit_(unit),
      partial_(partial),
      node_ranks_(builder.options().node_ranks),
      node_(builder.view().rank / node_ranks_),
      place_(builder.view().rank % node_ranks_) {}

Use NodeSum::with_peer(Use use, std::int32_t rank) const {
  use.peer = builder_->world_rank(builder_->pipeline().rank, rank);
  return use;
}

// The micro-batch is the rank's last one, as in an exchange between all ranks.
Instruction& NodeSum::emit_exchange_of_parts() const {
  const std::int32_t own = own_microbatch_count(builder_->model(), builder_->options());
  Instruction& exchange =
      builder_->emit(Op::kAllToAll, Lane::kComm, unit_, own * (builder_->view().rank + 1) - 1);
  exchange.group = builder_->data_group();
  return exchange;
}

void NodeSum::emit_within_node() {
  const std::int32_t own = own_microbatch_count(builder_->model(), builder_->options());
  const DType dtype = builder_->buffer(partial_).dtype;
  parts_.resize(static_cast<std::size_t>(nodes()));
  for (std::int32_t node = 0; node < nodes(); ++node) {
    const ElemRange shard = builder_->shard(unit_, rank_of(node, place_));
    for (std::int32_t place = 0; place < node_ranks_ && shard.elems() > 0; ++place) {
      const std::int32_t microbatch = own * (rank_of(node_, place) + 1) - 1;
      BufferId part = partial_;
      if (place != place_) {
        part = builder_->add_received(StateKind::kGradient, unit_, shard, dtype, microbatch,
                                      builder_->gradient_version());
      }
      parts_[static_cast<std::size_t>(node)].push_back({microbatch, part});
    }
  }
  Instruction& exchange = emit_exchange_of_parts();
  for (std::int32_t place = 0; place < node_ranks_; ++place) {
    if (place == place_) continue;
    const std::int32_t peer = rank_of(node_, place);
    for (std::int32_t node = 0; node < nodes(); ++node) {
      const ElemRange theirs = builder_->shard(unit_, rank_of(node, place));
      if (theirs.elems() > 0) {
        exchange.reads.push_back(with_peer(builder_->part(partial_, theirs), peer));
        exchange.bytes += exchange.reads.back().bytes;
      }
      const std::vector<GradientPart>& parts = parts_[static_cast<std::size_t>(node)];
      if (parts.empty()) continue;
      const ElemRange shard = builder_->shard(unit_, rank_of(node, place_));
      exchange.writes.push_back(
          with_peer(builder_->part(parts[static_cast<std::size_t>(place)].buffer, shard), peer));
    }
  }
}

void NodeSum::emit_node_additions() {
  for (std::int32_t node = 0; node < nodes(); ++node) {
    sums_.push_back(emit_fold_of_parts(*builder_, unit_,
                                       builder_->shard(unit_, rank_of(node, place_)),
                                       parts_[static_cast<std::size_t>(node)]));
  }
}

void NodeSum::emit_across_nodes() {
  const ElemRange own = builder_->own_shard(unit_);
  for (std::int32_t node = 0; node < nodes() && own.elems() > 0; ++node) {
    const BufferId part =
        node == node_ ? sums_[static_cast<std::size_t>(node)]
                      : builder_->add_received(StateKind::kGradient, unit_, own, DType::kF32, -1,
                                               builder_->gradient_version());
    node_parts_.push_back({-1, part});
  }
  Instruction& exchange = emit_exchange_of_parts();
  for (std::int32_t node = 0; node < nodes(); ++node) {
    if (node == node_) continue;
    const std::int32_t peer = rank_of(node, place_);
    const BufferId sum = sums_[static_cast<std::size_t>(node)];
    if (sum != kNoId) {
      exchange.reads.push_back(with_peer(builder_->part(sum, builder_->shard(unit_, peer)), peer));
      exchange.bytes += exchange.reads.back().bytes;
    }
    if (node_parts_.empty()) continue;
    const BufferId part = node_parts_[static_cast<std::size_t>(node)].buffer;
    exchange.writes.push_back(with_peer(builder_->part(part, own), peer));
  }
}

BufferId NodeSum::emit_additions() {
  return emit_fold_of_parts(*builder_, unit_, builder_->own_shard(unit_), node_parts_);
}

}  // namespace sluice::schedule
