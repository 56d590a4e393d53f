// Moves activations off the device between their uses, and back.
//
// A *visit* is a run of consecutive passes over one unit and micro-batch. A visit leaves values for
// other visits: a unit's output, its gradient, and the values that forward saves. The visits that
// use them are known in advance. If the placement says so and the next use is far, a value is
// written once to pinned memory, or through it to storage in pieces, and its device memory is
// freed. It comes back into a new buffer some visits ahead of each later use. A value that would
// come back before its memory had served another buffer stays.
//
// List order decides lifetimes. A spill is emitted one visit after the pass that made the value,
// so that the next visit need not wait for the copy. A fetch is emitted `prefetch` visits ahead of
// its use. A value that only the second half of a backward visit reads is fetched later by that
// half, so that it does not lie next to values of the first half. With a prefetch of 0 both are
// immediate, which takes the least memory.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// One value that a pass leaves: kActivation, kGradOut (of the unit's output), or one of the unit's
// kSaved values (saved_values.hpp).
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
  // The device buffer that holds the value now. The stream reads it to spill and replaces it when
  // it fetches. kNoId while the value is off the device.
  using DeviceBuffer = std::function<BufferId&(const ActivationKey&)>;
  // The tier where the value waits.
  using WaitingTier = std::function<Tier(const ActivationKey&)>;

  // passes: all passes of the schedule, in order.
  ActivationStream(StepBuilder& builder, const std::vector<Pass>& passes, DeviceBuffer device,
                   WaitingTier tier);
  // Call before pass `index` and its other fetches are emitted. Emits the spills that are due.
  void spill(std::size_t index);
  // Call before pass `index` is emitted. Emits the fetches that start here, for it and later ones.
  void fetch(std::size_t index);

 private:
  // A visit that touches one value, and the first of its passes that does.
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
  BufferId add_piece(BufferId value, Ring ring, ElemRange bytes);
  Use part(BufferId id, ElemRange bytes) const;
  std::vector<ElemRange> pieces(ElemRange bytes) const;
  ElemRange bytes_of(BufferId id) const;

  StepBuilder& builder_;
  DeviceBuffer device_;
  WaitingTier tier_;
  std::vector<std::size_t> visit_of_;    // by pass
  std::vector<std::size_t> first_pass_;  // by visit; the number of passes after the last
  // By visit.
  std::vector<std::vector<ActivationKey>> sent_after_;
  std::vector<std::vector<ActivationKey>> gone_after_;      // their device memory is freed
  std::vector<std::vector<ActivationKey>> brought_before_;  // by pass
  std::map<ActivationKey, BufferId> away_;                  // the buffers that hold spilled values
};

}  // namespace sluice::schedule
