// Two nested walks, over micro-batches and over units; the order of the options decides which of
// them is the outer one. Units go forward to the head and back. A segment of units that dropped
// their outputs goes forward once more before the walk back enters it.
#include "engine/schedule/compile/compute_items.hpp"

#include <utility>

namespace sluice::schedule {
namespace {

class ItemList {
 public:
  ItemList(const StepModel& model, const StepOptions& options)
      : model_(model),
        options_(options),
        microbatches_(own_microbatches(model, options)),
        repeated_(repeated_passes(options.recompute)) {
    repeated_.resize(model.units.size());
  }

  // One micro-batch passes through all units and back before the next one starts.
  std::vector<ComputeItem> by_microbatch() && {
    for (const std::int32_t mb : microbatches_) {
      for (std::int32_t unit = 0; unit < head(); ++unit) add(Op::kForward, unit, mb);
      add(Op::kLoss, head(), mb);
      for (std::int32_t unit = head(); unit >= 0; --unit) {
        add_segment(unit, {mb});
        add_backward(unit, mb);
      }
    }
    return std::move(items_);
  }

  // The head's passes of one micro-batch stay together, since the head saves more than any other
  // unit.
  std::vector<ComputeItem> by_unit() && {
    for (std::int32_t unit = 0; unit < head(); ++unit) {
      for (const std::int32_t mb : microbatches_) add(Op::kForward, unit, mb);
    }
    for (std::int32_t unit = head(); unit >= 0; --unit) {
      add_segment(unit, microbatches_);
      for (const std::int32_t mb : microbatches_) {
        if (unit == head()) add(Op::kLoss, head(), mb);
        add_backward(unit, mb);
      }
    }
    return std::move(items_);
  }

 private:
  std::int32_t head() const { return static_cast<std::int32_t>(model_.units.size()) - 1; }
  void add(Op op, std::int32_t unit, std::int32_t mb) { items_.push_back({op, unit, mb}); }

  const std::vector<UnitRun>& repeated(std::int32_t unit) const {
    return repeated_[static_cast<std::size_t>(unit)];
  }

  // If a segment of several units begins its way back with `unit`: its forward passes of these
  // micro-batches, once more.
  void add_segment(std::int32_t unit, const std::vector<std::int32_t>& microbatches) {
    if (repeated(unit).size() < 2) return;
    for (const UnitRun& again : repeated(unit)) {
      for (const std::int32_t mb : microbatches) {
        items_.push_back({Op::kRecompute, again.unit, mb, again.run});
      }
    }
  }

  // A unit first makes again the saved parts that it did not keep; in a segment that is done. The
  // gradient of the input comes before that of the weights, since the unit below waits for it.
  void add_backward(std::int32_t unit, std::int32_t mb) {
    if (repeated(unit).size() == 1) {
      items_.push_back({Op::kRecompute, unit, mb, repeated(unit).front().run});
    }
    const bool has_input = model_.units[static_cast<std::size_t>(unit)].has_input;
    if (has_input) add(Op::kBackwardInput, unit, mb);
    add(Op::kBackwardWeight, unit, mb);
  }

  const StepModel& model_;
  const StepOptions& options_;
  std::vector<std::int32_t> microbatches_;      // of this rank
  std::vector<std::vector<UnitRun>> repeated_;  // by unit
  std::vector<ComputeItem> items_;
};

}  // namespace

std::vector<std::int32_t> own_microbatches(const StepModel& model, const StepOptions& options) {
  std::vector<std::int32_t> own;
  if (options.fold_groups > 1) {
    const std::int32_t count = options.microbatches / model.view.ranks;
    for (std::int32_t i = 0; i < count; ++i) own.push_back(model.view.rank * count + i);
    return own;
  }
  for (std::int32_t mb = model.view.rank; mb < options.microbatches; mb += model.view.ranks) {
    own.push_back(mb);
  }
  return own;
}

std::int32_t last_own_microbatch(const StepModel& model, const StepOptions& options) {
  const RankView& view = model.view;
  if (options.fold_groups > 1) return options.microbatches / view.ranks * (view.rank + 1) - 1;
  return options.microbatches - view.ranks + view.rank;
}

std::vector<ComputeItem> training_items(const StepModel& model, const StepOptions& options) {
  ItemList list(model, options);
  return options.order == ComputeOrder::kUnit ? std::move(list).by_unit()
                                              : std::move(list).by_microbatch();
}

}  // namespace sluice::schedule
