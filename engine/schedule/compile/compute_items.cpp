// Two nested walks, over micro-batches and over units; the order of the options decides which of
// them is the outer one. Units go forward to the head and back. A segment of units that dropped
// their outputs goes forward once more before the walk back enters it.
//
// In a pipeline an order of stages leads the walk. A pass through a stage goes through its units,
// and a segment never reaches beyond its stage.
#include "engine/schedule/compile/compute_items.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "engine/schedule/orders/message_order.hpp"

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

  // Interleaved micro-batches pass through all units and back before the next ones start.
  StepItems by_microbatch() && {
    for (const std::vector<std::int32_t>& turn : turns()) {
      for (std::int32_t unit = 0; unit < head(); ++unit) add_all(Op::kForward, unit, turn);
      add_head(turn);
      for (std::int32_t unit = head() - 1; unit >= 0; --unit) {
        add_segment(unit, turn);
        for (const std::int32_t mb : turn) add_backward(unit, mb);
      }
    }
    return {std::move(items_), {}};
  }

  StepItems by_unit() && {
    for (std::int32_t unit = 0; unit < head(); ++unit) add_all(Op::kForward, unit, microbatches_);
    add_head(microbatches_);
    for (std::int32_t unit = head() - 1; unit >= 0; --unit) {
      add_segment(unit, microbatches_);
      for (const std::int32_t mb : microbatches_) add_backward(unit, mb);
    }
    return {std::move(items_), {}};
  }

  // The passes of this rank's list, and the messages among them.
  StepItems by_order(const PipelineOrder& order,
                     const std::vector<std::vector<PlacedMessage>>& messages) && {
    const auto rank = static_cast<std::size_t>(model_.pipeline.rank);
    std::vector<std::size_t> first_item;  // by pass
    for (const StageAction& action : order.actions[rank]) {
      if (!is_pass(action.kind)) continue;
      first_item.push_back(items_.size());
      add_pass(action);
    }
    first_item.push_back(items_.size());
    StepItems made{std::move(items_), {}};
    for (const PlacedMessage& message : messages[rank]) {
      made.messages.push_back(message_of(message, first_item[message.before]));
    }
    return made;
  }

 private:
  std::int32_t head() const { return static_cast<std::int32_t>(model_.units.size()) - 1; }
  void add(Op op, std::int32_t unit, std::int32_t mb) { items_.push_back({op, unit, mb}); }
  void add_all(Op op, std::int32_t unit, const std::vector<std::int32_t>& microbatches) {
    for (const std::int32_t mb : microbatches) add(op, unit, mb);
  }

  // The micro-batches whose passes are interleaved, in order.
  std::vector<std::vector<std::int32_t>> turns() const {
    std::vector<std::vector<std::int32_t>> list;
    for (const std::int32_t mb : microbatches_) {
      const bool full = !list.empty() && std::ssize(list.back()) == options_.turns;
      if (list.empty() || full) list.emplace_back();
      list.back().push_back(mb);
    }
    return list;
  }

  // The head's passes of one micro-batch stay together, since the head saves more than any other
  // unit.
  void add_head(const std::vector<std::int32_t>& microbatches) {
    for (const std::int32_t mb : microbatches) {
      add(Op::kLoss, head(), mb);
      add_backward(head(), mb);
    }
  }

  const std::vector<UnitRun>& repeated(std::int32_t unit) const {
    return repeated_[static_cast<std::size_t>(unit)];
  }

  void add_pass(const StageAction& pass) {
    const UnitRange& range = model_.pipeline.units_of(pass.stage);
    const std::int32_t mb = microbatches_[static_cast<std::size_t>(pass.microbatch)];
    if (pass.kind == ActionKind::kForward) {
      for (std::int32_t unit = range.begin; unit < range.end; ++unit) {
        add(unit == head() ? Op::kLoss : Op::kForward, unit, mb);
      }
      return;
    }
    const bool weights_alone = pass.kind == ActionKind::kBackwardWeight;
    const std::int32_t remade = weights_alone ? range.end : recompute_ahead(range, mb);
    for (std::int32_t unit = range.end; unit-- > range.begin;) {
      if (weights_alone) {
        add(Op::kBackwardWeight, unit, mb);
        continue;
      }
      if (unit < remade) {
        add_segment(unit, {mb});
        add_recompute(unit, mb);
      }
      add_input_gradient(unit, mb);
      if (pass.kind == ActionKind::kBackward) add(Op::kBackwardWeight, unit, mb);
    }
  }

  // The recomputations of the stage's last units, in front of its backward passes, down to the
  // first unit that belongs to a segment. Returns the lowest unit that is done.
  std::int32_t recompute_ahead(const UnitRange& range, std::int32_t mb) {
    const std::int32_t lowest = std::max(range.begin, range.end - options_.recompute_ahead);
    std::int32_t unit = range.end;
    for (; unit > lowest && repeated(unit - 1).size() < 2; --unit) add_recompute(unit - 1, mb);
    return unit;
  }

  ItemMessage message_of(const PlacedMessage& message, std::size_t before) const {
    const StageAction& action = message.action;
    const bool from_below =
        action.kind == ActionKind::kReceiveForward || action.kind == ActionKind::kSendBackward;
    const std::int32_t lower = from_below ? action.stage - 1 : action.stage;
    ItemMessage made;
    switch (action.kind) {
      case ActionKind::kSendForward:
        made.op = Op::kSendForward;
        break;
      case ActionKind::kReceiveForward:
        made.op = Op::kRecvForward;
        break;
      case ActionKind::kSendBackward:
        made.op = Op::kSendBackward;
        break;
      case ActionKind::kReceiveBackward:
        made.op = Op::kRecvBackward;
        break;
      default:
        throw InternalError("not a message");
    }
    made.unit = model_.pipeline.units_of(lower).end - 1;
    made.microbatch = microbatches_[static_cast<std::size_t>(action.microbatch)];
    made.peer = message.peer;
    made.before = before;
    return made;
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

  // A unit first recomputes the saved parts that it did not keep; in a segment that is done. The
  // gradient of the input comes before that of the weights, since the unit below waits for it.
  void add_backward(std::int32_t unit, std::int32_t mb) {
    add_recompute(unit, mb);
    add_input_gradient(unit, mb);
    add(Op::kBackwardWeight, unit, mb);
  }
  void add_recompute(std::int32_t unit, std::int32_t mb) {
    if (repeated(unit).size() != 1) return;
    items_.push_back({Op::kRecompute, unit, mb, repeated(unit).front().run});
  }
  void add_input_gradient(std::int32_t unit, std::int32_t mb) {
    const bool has_input = model_.units[static_cast<std::size_t>(unit)].has_input;
    if (has_input) add(Op::kBackwardInput, unit, mb);
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
  const std::int32_t total = total_microbatches(model, options);
  for (std::int32_t mb = 0; model.view.is_asynchronous() && mb < total; ++mb) {
    if (model.view.arrival_of(mb) == model.view.rank) own.push_back(mb);
  }
  if (model.view.is_asynchronous()) return own;
  for (std::int32_t mb = model.view.rank; mb < total; mb += model.view.ranks) {
    own.push_back(mb);
  }
  return own;
}

std::int32_t last_own_microbatch(const StepModel& model, const StepOptions& options) {
  const RankView& view = model.view;
  if (view.is_asynchronous()) return 0;
  if (options.fold_groups > 1) return options.microbatches / view.ranks * (view.rank + 1) - 1;
  return options.microbatches - view.ranks + view.rank;
}

bool may_take_turns(const StepModel& model) {
  return !model.view.tensor.is_alone() && model.pipeline.is_alone();
}

std::size_t end_of_visit(std::span<const ComputeItem> items, std::size_t begin) {
  std::size_t end = begin + 1;
  const auto stays = [&](const ComputeItem& next) {
    return next.unit == items[begin].unit && next.microbatch == items[begin].microbatch;
  };
  while (end < items.size() && stays(items[end])) ++end;
  return end;
}

std::vector<Turn> turns_of(const StepOptions& options, std::span<const ComputeItem> items) {
  std::vector<Turn> turns;
  if (options.turns == 1) {
    for (std::size_t i = 0; i < items.size(); ++i) turns.push_back({items.subspan(i, 1)});
    return turns;
  }
  const auto alike = [](const ComputeItem& a, const ComputeItem& b) {
    return a.op == b.op && a.unit == b.unit && a.run == b.run;
  };
  for (std::size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    end = end_of_visit(items, begin);
    const std::span<const ComputeItem> visit = items.subspan(begin, end - begin);
    const bool joins = !turns.empty() && std::ssize(turns.back()) < options.turns &&
                       std::ranges::equal(turns.back().front(), visit, alike);
    if (!joins) turns.emplace_back();
    turns.back().push_back(visit);
  }
  return turns;
}

StepItems training_items(const StepModel& model, const StepOptions& options) {
  ItemList list(model, options);
  const StageView& pipeline = model.pipeline;
  if (!pipeline.is_alone()) {
    return std::move(list).by_order(
        pipeline.order, pipeline.messages ? *pipeline.messages : place_messages(pipeline.order));
  }
  return options.order == ComputeOrder::kUnit ? std::move(list).by_unit()
                                              : std::move(list).by_microbatch();
}

// An evaluation ends with the head's forward pass, which is its loss.
StepItems evaluation_items(const StepModel& model, const StepOptions& options) {
  StepItems made;
  if (model.pipeline.is_alone()) {
    const std::int32_t own = own_microbatches(model, options).front();
    for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
      made.items.push_back({Op::kForward, static_cast<std::int32_t>(unit), own});
    }
    return made;
  }
  PipelineOrder order = model.pipeline.order;
  for (std::vector<StageAction>& list : order.actions) {
    std::erase_if(list, [](const StageAction& action) {
      return action.kind != ActionKind::kForward || action.microbatch > 0;
    });
  }
  order.microbatches = 1;
  order.versions.clear();
  made = ItemList(model, options).by_order(order, place_messages(order));
  for (ComputeItem& item : made.items) item.op = Op::kForward;
  return made;
}

}  // namespace sluice::schedule
