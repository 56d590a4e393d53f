// What passes leave for later passes, between its uses: on the device, or away.
//
// A *visit* is the passes over one unit and micro-batch that follow each other. What a visit leaves
// (a unit's output, the gradient of it, what its forward pass saved) is used by other visits, known
// in advance. Where a placement says so and the next use is far, it goes down once, to pinned
// memory or through it to storage in pieces, its device memory is given up, and it comes up again
// into a fresh buffer some visits ahead of each later use. What comes back before its memory would
// have served anybody stays.
//
// List order is what decides lifetimes (ARCHITECTURE, "Lifetimes come from list order"): a spill is
// emitted a visit behind the pass that made the value, so that the next visit need not wait for the
// copy, and a fetch `prefetch` visits ahead of its use. With a prefetch of 0 both are immediate,
// which takes the least memory.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "engine/schedule/step_builder.hpp"

namespace sluice {

// One thing that a pass leaves: kActivation and kGradOut (of the unit's output) or kSaved.
struct ActivationKey {
  BufferRole role = BufferRole::kActivation;
  std::int32_t unit = 0;
  std::int32_t microbatch = 0;
  auto operator<=>(const ActivationKey&) const = default;
};

class ActivationStream {
 public:
  struct Pass {
    std::int32_t unit = 0;
    std::int32_t microbatch = 0;
    std::vector<ActivationKey> touches;  // read or made
  };
  // The device buffer that holds the value now; the stream reads it to spill, and replaces it where
  // it fetches. kNoId while the value is away.
  using DeviceBuffer = std::function<BufferId&(const ActivationKey&)>;

  // passes: of the whole schedule, in order.
  ActivationStream(StepBuilder& builder, const std::vector<Pass>& passes, DeviceBuffer device);
  // Before pass `index` is emitted and before what it fetches otherwise: spills that are due.
  void spill(std::size_t index);
  // Before pass `index` is emitted: fetches that start here, for it and ahead of it.
  void fetch(std::size_t index);

 private:
  using Visits = std::vector<std::size_t>;  // that touch one thing, ascending
  void plan_moves(const ActivationKey& key, const Visits& visits);
  bool begins_visit(std::size_t index) const {
    return index == 0 || visit_of_[index] != visit_of_[index - 1];
  }
  void send(const ActivationKey& key);
  void send_in_pieces(const ActivationKey& key, BufferId from);
  void bring(const ActivationKey& key);
  void bring_in_pieces(const ActivationKey& key, BufferId to);
  BufferId add_place(const ActivationKey& key, Tier tier, ElemRange bytes);
  Use part(BufferId id, ElemRange bytes) const;
  std::vector<ElemRange> pieces(std::uint64_t bytes) const;

  StepBuilder& builder_;
  DeviceBuffer device_;
  std::vector<std::size_t> visit_of_;  // by pass
  // By visit.
  std::vector<std::vector<ActivationKey>> sent_after_;
  std::vector<std::vector<ActivationKey>> gone_after_;  // their device memory is given up
  std::vector<std::vector<ActivationKey>> brought_before_;
  std::map<ActivationKey, BufferId> away_;  // where what was sent lies
};

}  // namespace sluice
