// The sums that a rank among others keeps of its own groups of micro-batches, where they wait in
// pinned memory or on storage (Placement::partial).
//
// Such sums are of whole units: what becomes of a shard is known only when all groups are summed.
// On the device they would take 4 bytes of each parameter from the first micro-batch to the last.
// Here a micro-batch's gradient is downloaded and added on the host, and only the rank's last one
// is added on the device, to a sum that comes back there. So the device holds the sums of one unit
// at a time.
#pragma once

#include <cstdint>
#include <map>

#include "engine/schedule/compile/group_sums.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class PartialSums {
 public:
  explicit PartialSums(StepBuilder& builder) : builder_(builder) {}
  // Adds the gradient in `window`, which is not of the rank's last micro-batch. All of the unit's
  // come in ascending order.
  void add(std::int32_t unit, std::int32_t microbatch, BufferId window);
  // Adds that of the rank's last one. Returns the sum of all of the rank's micro-batches, which is
  // on the device.
  BufferId complete(std::int32_t unit, std::int32_t microbatch, BufferId window);

 private:
  bool begins_group(std::int32_t microbatch) const;
  bool ends_group(std::int32_t microbatch) const;
  void fold_on_host(std::int32_t unit, BufferId into, BufferId from);
  BufferId bring_up(std::int32_t unit, BufferId sum);

  StepBuilder& builder_;
  std::map<std::int32_t, GroupSums> groups_;  // by unit
};

// Adds one micro-batch's gradient, or a part of it, to a sum on the device. begins: it begins the
// sum.
void emit_add_on_device(StepBuilder& builder, std::int32_t unit, ElemRange range, BufferId gradient,
                        std::int32_t microbatch, BufferId sum, bool begins);
// Adds a micro-batch's gradient of the whole unit from the device to a sum in pinned memory or on
// storage.
void emit_add_on_host(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch,
                      BufferId window, BufferId sum, bool begins);
// `into` += `from`, where both are sums.
void emit_fold(StepBuilder& builder, Lane lane, std::int32_t unit, Use into, Use from,
               std::int32_t piece);

}  // namespace sluice::schedule
