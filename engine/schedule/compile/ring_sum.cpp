// Every rank emits as many exchanges in each step, in the order of buckets. One without a part for
// this rank stands there all the same, so that no rank waits for a shard that has nothing to bring.
#include "engine/schedule/compile/ring_sum.hpp"

#include <utility>

#include "engine/schedule/compile/partial_sums.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"

namespace sluice::schedule {

RingSum::RingSum(StepBuilder& builder, std::int32_t unit, BufferId partial)
    : builder_(&builder), unit_(unit), partial_(partial) {}

std::int32_t RingSum::before(std::int32_t back) const {
  const RankView& view = builder_->view();
  return (view.rank + 2 * view.ranks - back) % view.ranks;
}

// The last step brings slices of this rank's own shard.
BufferId RingSum::target(ElemRange slice) {
  const bool last = step_ + 2 == builder_->view().ranks;
  if (last && sum_ != kNoId) return sum_;
  const ElemRange range = last ? builder_->own_shard(unit_) : slice;
  const BufferId made = builder_->add_received(StateKind::kGradient, unit_, range, DType::kF32, -1,
                                               builder_->gradient_version());
  if (last) sum_ = made;
  return made;
}

void RingSum::emit_step() {
  const std::vector<ElemRange> sent = bucket_slices(*builder_, unit_, before(1 + step_));
  const std::vector<ElemRange> received = bucket_slices(*builder_, unit_, before(2 + step_));
  std::vector<BufferId> arriving(sent.size(), kNoId);
  for (std::size_t bucket = 0; bucket < sent.size(); ++bucket) {
    const bool takes = received[bucket].elems() > 0;
    if (takes) arriving[bucket] = target(received[bucket]);
    Instruction& exchange = builder_->emit(Op::kAllToAll, Lane::kComm, unit_, -1);
    exchange.group = builder_->data_group();
    exchange.chunk = static_cast<std::int32_t>(bucket);
    if (sent[bucket].elems() > 0) {
      Use part = builder_->part(step_ == 0 ? partial_ : arrived_[bucket], sent[bucket]);
      part.peer = builder_->world_rank(builder_->pipeline().rank, before(-1));
      exchange.bytes = part.bytes;
      exchange.reads.push_back(part);
    }
    if (takes) {
      Use part = builder_->part(arriving[bucket], received[bucket]);
      part.peer = builder_->world_rank(builder_->pipeline().rank, before(1));
      exchange.writes.push_back(part);
    }
  }
  arrived_ = std::move(arriving);
}

void RingSum::emit_additions() {
  const std::vector<ElemRange> received = bucket_slices(*builder_, unit_, before(2 + step_));
  for (std::size_t bucket = 0; bucket < received.size(); ++bucket) {
    if (arrived_[bucket] == kNoId) continue;
    emit_fold(*builder_, Lane::kCompute, unit_, builder_->part(arrived_[bucket], received[bucket]),
              builder_->part(partial_, received[bucket]), static_cast<std::int32_t>(bucket));
  }
  ++step_;
}

}  // namespace sluice::schedule
