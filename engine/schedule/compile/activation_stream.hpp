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
// copy, and a fetch `prefetch` visits ahead of its use. What only the second half of a backward
// visit reads comes as much later, so that it does not lie beside what only the first half reads.
// With a prefetch of 0 both are immediate, which takes the least memory.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// One thing that a pass leaves: kActivation and kGradOut (of the unit's output) or kSaved, of which
// there may be several (saved_values.hpp).
struct ActivationKey {
  BufferRole role = BufferRole::kActivation;
  std::int32_t unit = 0;
  std::int32_t microbatch = 0;
  std::int32_t value = 0;
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
  // Where it waits.
  using WaitingTier = std::function<Tier(const ActivationKey&)>;

  // passes: of the whole schedule, in order.
  ActivationStream(StepBuilder& builder, const std::vector<Pass>& passes, DeviceBuffer device,
                   WaitingTier tier);
  // Before pass `index` is emitted and before what it fetches otherwise: spills that are due.
  void spill(std::size_t index);
  // Before pass `index` is emitted: fetches that start here, for it and ahead of it.
  void fetch(std::size_t index);

 private:
  // A visit that touches one thing, and the first of its passes that does.
  struct Touch {
    std::size_t visit = 0;
    std::size_t pass = 0;
  };
  using Visits = std::vector<Touch>;  // ascending
  void plan_moves(const ActivationKey& key, const Visits& visits);
  bool begins_visit(std::size_t index) const {
    return index == 0 || visit_of_[index] != visit_of_[index - 1];
  }
  std::size_t pass_that_brings(const Touch& use) const;
  void send(const ActivationKey& key);
  void send_in_pieces(const ActivationKey& key, BufferId from);
  void bring(const ActivationKey& key);
  void bring_in_pieces(const ActivationKey& key, BufferId to);
  BufferId add_place(BufferId value, Tier tier, ElemRange bytes);
  Use part(BufferId id, ElemRange bytes) const;
  std::vector<ElemRange> pieces(ElemRange bytes) const;
  ElemRange bytes_of(BufferId id) const;

  StepBuilder& builder_;
  DeviceBuffer device_;
  WaitingTier tier_;
  std::vector<std::size_t> visit_of_;    // by pass
  std::vector<std::size_t> first_pass_;  // by visit; the number of passes behind the last
  // By visit.
  std::vector<std::vector<ActivationKey>> sent_after_;
  std::vector<std::vector<ActivationKey>> gone_after_;      // their device memory is given up
  std::vector<std::vector<ActivationKey>> brought_before_;  // by pass
  std::map<ActivationKey, BufferId> away_;                  // where what was sent lies
};

}  // namespace sluice::schedule
