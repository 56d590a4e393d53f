// The classical ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009), as instructions: a reduce-scatter around the ring. The
// all-gather after it is that of stage 0, of rounded gradients.
//
// Each rank has an fp32 sum of its own micro-batches. The sum of shard p begins at rank p + 1 and
// travels over p + 2, p + 3, ..., each of which adds its own to it, to rank p. So in step s rank r
// sends that of shard r - 1 - s and receives that of shard r - 2 - s. A step goes in buckets: equal
// slices of all shards, so that one slice travels while the one before is added.
//
// Each rank sends 4 (N - 1) / N bytes for each element, whatever the number of its micro-batches.
// The order of additions differs from shard to shard and depends on N: the bits are reproducible,
// and outside law 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class RingSum {
 public:
  // partial: this rank's sum, of the whole unit, on the device.
  RingSum(StepBuilder& builder, std::int32_t unit, BufferId partial);
  // Steps follow each other: step(), then add(), for each of them.
  bool is_done() const { return step_ + 1 == builder_->view().ranks; }
  void emit_step();
  void emit_additions();
  // The complete sum of this rank's shard, once is_done(); kNoId: the shard is empty.
  BufferId sum() const { return sum_; }

 private:
  // The rank `back` places before this one.
  std::int32_t before(std::int32_t back) const;
  // The buffer that receives a slice.
  BufferId target(ElemRange slice);

  StepBuilder* builder_;
  std::int32_t unit_;
  BufferId partial_;
  std::int32_t step_ = 0;
  std::vector<BufferId> arrived_;  // by bucket, in the last step; kNoId: an empty slice
  BufferId sum_ = kNoId;
};

}  // namespace sluice::schedule
