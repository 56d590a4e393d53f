// 690 lines because one walk over the items drives all streams.
//
// Generates the schedules of a run by walking its compute passes in order.
//
// A step is a list of compute items: the passes of all units over all micro-batches, by micro-batch
// or by unit. The generator visits the items in that order. Before each it lets the streams emit
// the transfers that start there: spills and fetches of activations, fetches of weights, and a
// share of a save. Then it emits the pass with the buffers that it reads and writes, and sends its
// gradients on their path. Updates go where the options place them: after the backward pass, right
// after each completed gradient, or in front of the next step's use of the weights.
//
// In a pipeline the items are those of the rank's own units, with sends and receives between them.
//
// The order of emission is one possible sequential execution; link and pack turn it into lanes with
// dependencies and places.
#include "engine/schedule/compile/generate.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>

#include "base/error.hpp"
#include "engine/schedule/compile/activation_stream.hpp"
#include "engine/schedule/compile/compute_items.hpp"
#include "engine/schedule/compile/gradient_path.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"
#include "engine/schedule/compile/pass_steps.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"
#include "engine/schedule/compile/saved_values.hpp"
#include "engine/schedule/compile/state_save.hpp"
#include "engine/schedule/compile/step_builder.hpp"
#include "engine/schedule/compile/tied_stages.hpp"
#include "engine/schedule/compile/update_stream.hpp"
#include "engine/schedule/compile/weight_stream.hpp"
#include "engine/schedule/compile/weight_versions.hpp"

namespace sluice::schedule {
namespace {

// Device buffers of one micro-batch between its instructions.
struct MicrobatchBuffers {
  bool entered = false;
  BufferId tokens = kNoId;                   // of a rank that reads them
  std::vector<BufferId> output;              // by unit
  std::vector<std::vector<BufferId>> saved;  // by unit and value (saved_values.hpp)
  std::vector<BufferId> grad_output;         // by unit: gradient of its output
  std::vector<BufferId> context;             // by unit
};

class StepGenerator {
 public:
  // pending: the deferred updates of the step before are made first.
  StepGenerator(const StepModel& model, const StepOptions& options, bool pending = false)
      : model_(model),
        builder_(model, options, pending ? 1 : 0),
        gradients_(builder_),
        deferred_updates_(make_deferred_updates()),
        updates_(make_updates()) {
    // The state log finds all state in one copy, so all of it is made by one update.
    SLUICE_CHECK(!options.durable || deferred() == 0 || deferred() == units());
    SLUICE_CHECK(is_possible(model, options.recompute));
    SLUICE_CHECK(options.turns == 1 || may_take_turns(model));
    for (std::int32_t unit = 0; unit < units(); ++unit) {
      saved_values_.push_back(saved_values(model, options, unit));
    }
  }

  // The items of all passes come first, then the sum of tied gradients and the clip factor, which
  // needs all norms. Updates that are not placed elsewhere end the step.
  Schedule training_step(bool saves) {
    if (saves) saver_.emplace(builder_);
    if (options().recompute.any()) builder_.declare_saved_parts();
    emit_items(training_items(model_, options()));
    if (builder_.view().is_asynchronous()) emit_last_weights(builder_);
    commit();
    gradients_.finish();
    for (std::int32_t update = 0; update < update_count(model_); ++update) {
      builder_.set_update(update);
      emit_norm_gather(builder_);
      emit_clip_factor(builder_);
    }
    updates_.emit_rest();
    const std::int32_t found = builder_.weight_version();
    const std::int32_t left = found + update_count(model_);
    if (deferred() == 0) emit_tied_weights(builder_, left);
    // Gradients stay for a redo, too.
    const bool redoable = options().update == UpdatePlacement::kSpeculative;
    return builder_.finish(
        {.deferred = {0, found, pending(), true}, .others = {found, left, false, redoable}},
        deferred_updates_.kept());
  }

  // The pending update alone.
  Schedule drain() {
    deferred_updates_.emit_rest();
    if (deferred() > 0) emit_tied_weights(builder_, 1);
    return builder_.finish({.deferred = {0, 1, true, false}, .others = {1, 1, false, false}});
  }

  // A speculative update made once more, with its clip factor. Deferred gradients stay pending.
  Schedule redo() {
    UpdateStream(builder_, own_units(deferred(), units()),
                 {.gradients_complete = true, .clips = true})
        .emit_rest();
    if (deferred() == 0) emit_tied_weights(builder_, 1);
    return builder_.finish({.deferred = {0, 0, true, true}, .others = {0, 1, true, false}});
  }

  Schedule evaluation() {
    emit_items(evaluation_items(model_, options()), false);
    return builder_.finish({});
  }

  Schedule save() {
    StateSaver(builder_).commit();
    return builder_.finish({});
  }

 private:
  const StepOptions& options() const { return builder_.options(); }
  std::int32_t units() const { return builder_.unit_count(); }
  std::int32_t deferred() const { return builder_.carried_units(); }
  // Whether the deferred updates of the step before are made first.
  bool pending() const { return builder_.weight_version() > 0; }
  // This rank's units [first, last), ascending.
  std::vector<std::int32_t> own_units(std::int32_t first, std::int32_t last) const {
    std::vector<std::int32_t> list;
    for (std::int32_t unit = first; unit < last; ++unit) {
      if (builder_.owns(unit)) list.push_back(unit);
    }
    return list;
  }
  const UnitFootprint& footprint(std::int32_t unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }

  // The head's weight gradient computes its logits again, which needs weights. The weight gradients
  // of other units need none.
  std::vector<WeightUse> weights_read(const ComputeItem& item) const {
    const UnitFootprint& unit = footprint(item.unit);
    if (item.op == Op::kBackwardWeight && !unit.is_head) return {};
    const auto use_of = [&](std::int32_t of) {
      return WeightUse{of, builder_.delayed_version(of, item.microbatch)};
    };
    std::vector<WeightUse> read{use_of(item.unit)};
    const bool borrows = unit.borrows >= 0 && item.op != Op::kBackwardInput;
    if (borrows) read.push_back(use_of(unit.borrows));
    return read;
  }

  // Whether the pass reads the value from an earlier pass or makes it for a later one. A Recompute
  // makes the values that the forward pass did not keep, from those that it kept. Each half of
  // backward reads the values that serve it.
  bool touches(const ComputeItem& item, const SavedValue& value) const {
    switch (item.op) {
      case Op::kForward:
        return !value.remade;
      case Op::kRecompute:
        return makes_parts(item) && (value.remade || is_source(item.unit, value));
      case Op::kBackwardInput:
        return value.used_by != SavedFor::kBackwardWeight;
      case Op::kBackwardWeight:
        return value.used_by != SavedFor::kBackwardInput;
      default:
        return true;
    }
  }
  // Whether the unit recomputes parts from this value.
  bool is_source(std::int32_t unit, const SavedValue& value) const {
    const PartMask remade = options().recompute.parts_of(unit);
    return (sources_of(footprint(unit).saved_parts, remade) & value.parts) != 0;
  }

  // A Recompute makes an output only if that of the run before was dropped.
  bool makes_output(const ComputeItem& item) const {
    if (item.op == Op::kRecompute) return options().recompute.output_run(item.unit) >= item.run;
    return item.op == Op::kForward;
  }
  // A Recompute that only makes an output leaves no parts, as the forward pass before it.
  bool makes_parts(const ComputeItem& item) const {
    return item.run == options().recompute.units[static_cast<std::size_t>(item.unit)].parts_run;
  }

  // The activations that an item reads from other passes or makes for them.
  std::vector<ActivationKey> activations(const ComputeItem& item) const {
    const UnitFootprint& unit = footprint(item.unit);
    std::vector<ActivationKey> keys;
    const bool goes_back = item.op == Op::kBackwardInput || item.op == Op::kBackwardWeight;
    const auto touch = [&](BufferRole role, std::int32_t of, std::uint64_t bytes) {
      // An output that was dropped and recomputed is another value, so that none of them waits
      // for the other. A forward pass reads the output of the same run, or of the one that stays.
      std::int32_t run = 0;
      if (role == BufferRole::kActivation) {
        run = options().recompute.output_run(of);
        if (!goes_back) run = std::min(run, item.run);
      }
      if (of >= 0 && bytes > 0) keys.push_back({role, of, item.microbatch, run});
    };
    const std::int32_t before = item.unit - 1;
    const std::uint64_t input_bytes = before < 0 ? 0 : footprint(before).output_bytes;
    touch(BufferRole::kActivation, before, input_bytes);
    if (makes_output(item)) touch(BufferRole::kActivation, item.unit, unit.output_bytes);
    const std::vector<SavedValue>& values = saved_values_[static_cast<std::size_t>(item.unit)];
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!touches(item, values[i])) continue;
      keys.push_back(
          {BufferRole::kSaved, item.unit, item.microbatch, static_cast<std::int32_t>(i)});
    }
    if (!goes_back) return keys;
    if (!unit.is_head) touch(BufferRole::kGradOut, item.unit, unit.output_bytes);
    if (item.op == Op::kBackwardInput) touch(BufferRole::kGradOut, before, input_bytes);
    return keys;
  }
  BufferId& device_buffer(const ActivationKey& key) {
    MicrobatchBuffers& buffers = buffers_[static_cast<std::size_t>(key.microbatch)];
    const auto at = static_cast<std::size_t>(key.unit);
    if (key.role == BufferRole::kActivation) return buffers.output[at];
    if (key.role == BufferRole::kGradOut) return buffers.grad_output[at];
    return buffers.saved[at][static_cast<std::size_t>(key.value)];
  }
  Tier waiting_tier(const ActivationKey& key) const {
    if (key.role != BufferRole::kSaved) return options().placement.activation_of(key.unit);
    return saved_values_[static_cast<std::size_t>(key.unit)][static_cast<std::size_t>(key.value)]
        .tier;
  }
  // The stream sees all passes with the values that they touch, and so knows every next use. Passes
  // that are interleaved are one to it.
  ActivationStream make_activations(const std::vector<Turn>& turns) {
    std::vector<ActivationStream::Pass> passes;
    for (const Turn& turn : turns) {
      passes.push_back({first_of(turn).unit, first_of(turn).microbatch, {}});
      std::vector<ActivationKey>& touches = passes.back().touches;
      for (const ComputeItem& item : items_of(turn)) {
        const std::vector<ActivationKey> keys = activations(item);
        touches.insert(touches.end(), keys.begin(), keys.end());
      }
    }
    return {builder_, passes,
            [this](const ActivationKey& key) -> BufferId& { return device_buffer(key); },
            [this](const ActivationKey& key) { return waiting_tier(key); }};
  }

  // The deferred updates of the step before, in the order in which the weights are needed.
  UpdateStream make_deferred_updates() {
    return {builder_,
            own_units(0, deferred()),
            {.gradients_complete = true, .clips = true, .keeps_ring = options().keeps_update_ring}};
  }
  // This step's updates of the other units, as they become possible: in the backward pass from the
  // last unit on, and in a pipeline as the order of its passes has it.
  UpdateStream make_updates() {
    const bool in_backward = updates_in_backward();
    std::vector<std::int32_t> order;
    // Delayed updates are streams of their own (make_delayed_update).
    if (!delays_updates()) order = own_units(deferred(), units());
    if (in_backward) std::reverse(order.begin(), order.end());
    if (in_backward && !model_.pipeline.is_alone()) order = in_order_of_completion(order);
    return {builder_,
            std::move(order),
            {!in_backward, !in_backward, builder_.weight_version() + 1, false}};
  }
  std::vector<std::int32_t> in_order_of_completion(std::vector<std::int32_t> order) const {
    std::vector<std::size_t> completed(static_cast<std::size_t>(units()), SIZE_MAX);
    const std::vector<ComputeItem> items = training_items(model_, options()).items;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (completes_gradient(items[i])) completed[static_cast<std::size_t>(items[i].unit)] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return completed[static_cast<std::size_t>(a)] < completed[static_cast<std::size_t>(b)];
    });
    return order;
  }
  bool delays_updates() const { return model_.pipeline.order.delays_updates(); }
  bool updates_in_backward() const {
    return options().update == UpdatePlacement::kInBackward ||
           options().update == UpdatePlacement::kSpeculative;
  }
  // Whether the gradient of one of the unit's updates is complete after this item. A tied
  // embedding's is complete only after its reduction.
  bool completes_gradient(const ComputeItem& item) const {
    return item.op == Op::kBackwardWeight &&
           item.microbatch % options().microbatches == last_own_microbatch(model_, options()) &&
           !(item.unit == 0 && model_.tied_elems > 0);
  }

  // Emits the items in order, each with the transfers that start there. The order of the calls is
  // part of the design: memory of spilled values is freed before weights are fetched, and both
  // before activations come back.
  void emit_items(const StepItems& step, bool trains = true) {
    builder_.declare_segments();
    const std::vector<Turn> turns = turns_of(options(), step.items);
    std::vector<std::vector<WeightUse>> uses;
    for (const Turn& turn : turns) uses.push_back(weights_read(turn));
    std::function<void(std::int32_t)> before_use;
    if (pending()) before_use = [this](std::int32_t unit) { make_pending_update(unit); };
    // The copy of a tied tensor's unit arrives before anything else.
    if (pending() && !builder_.owns(0)) return_tied_weights();
    weight_versions_.emplace(builder_, uses);
    WeightStream weights(builder_, *weight_versions_, uses, std::move(before_use));
    ActivationStream activations = make_activations(turns);
    const auto updated = std::find_if(turns.begin(), turns.end(), [&](const Turn& turn) {
      return updates_in_backward() && first_of(turn).unit >= deferred() &&
             std::ranges::any_of(items_of(turn),
                                 [&](const ComputeItem& item) { return completes_gradient(item); });
    });
    // All state is saved before the first pass that completes a gradient of an update in backward.
    // The update itself, and the commit before it, may come several passes later (exchange_lag).
    const auto saves_within = static_cast<std::size_t>(updated - turns.begin());
    auto message = step.messages.begin();
    const auto emit_messages = [&](std::size_t before) {
      for (; message != step.messages.end() && message->before == before; ++message) {
        emit_message(*message);
      }
    };
    std::size_t item = 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      weight_versions_->advance(i);
      const std::int32_t microbatch = first_of(turns[i]).microbatch;
      if (trains) receive_arrivals(i == 0 ? 0 : first_of(turns[i - 1]).microbatch, microbatch);
      weight_versions_->advance(i + 1);
      builder_.set_update(microbatch / options().microbatches);
      activations.spill(i);
      emit_messages(item);
      weights.advance(i);
      activations.fetch(i);
      emit_turn(turns[i], [&](const WeightUse& read) { return weights.window(read); });
      for (const auto& visit : turns[i]) item += visit.size();
      if (saver_) saver_->advance(i + 1, saves_within);
    }
    finish_late_visit();
    emit_messages(item);
    if (trains) receive_arrivals(first_of(turns.back()).microbatch, update_count(model_));
  }
  static const ComputeItem& first_of(const Turn& turn) { return turn.front().front(); }
  // The visits of a turn follow each other in the list of items.
  static std::span<const ComputeItem> items_of(const Turn& turn) {
    return {&turn.front().front(), &turn.back().back() + 1};
  }
  // Once each.
  std::vector<WeightUse> weights_read(const Turn& turn) const {
    if (turn.size() == 1 && turn.front().size() == 1) return weights_read(first_of(turn));
    std::vector<WeightUse> all;
    for (const ComputeItem& item : items_of(turn)) {
      for (const WeightUse& use : weights_read(item)) {
        if (std::ranges::find(all, use) == all.end()) all.push_back(use);
      }
    }
    return all;
  }

  // An asynchronous server: the gradients of micro-batches [begin, end) that other ranks have
  // computed, in the order in which all ranks meet. This rank's own come with its passes.
  void receive_arrivals(std::int32_t begin, std::int32_t end) {
    const RankView& view = builder_.view();
    for (std::int32_t update = begin; view.is_asynchronous() && update < end; ++update) {
      if (view.arrival_of(update) == view.rank) continue;
      builder_.set_update(update);
      for (std::int32_t unit = units(); unit-- > 0;) {
        gradients_.emit(unit, update, kNoId);
        make_delayed_update(unit);
      }
    }
  }

  // The deferred update of a unit, in front of a use of its weights.
  void make_pending_update(std::int32_t unit) {
    deferred_updates_.emit_through(unit);
    if (unit == 0) return_tied_weights();
  }
  void return_tied_weights() {
    if (deferred() == 0 || tied_weights_returned_) return;
    tied_weights_returned_ = true;
    emit_tied_weights(builder_, builder_.weight_version());
  }

  // A send of a value that is there, or a receive into a new buffer.
  void emit_message(const ItemMessage& message) {
    enter_microbatch(message.microbatch);
    const auto at = static_cast<std::size_t>(message.unit);
    const bool forward = message.op == Op::kSendForward || message.op == Op::kRecvForward;
    const bool sends = message.op == Op::kSendForward || message.op == Op::kSendBackward;
    BufferId& value = forward ? now_->output[at] : now_->grad_output[at];
    const std::uint64_t bytes = footprint(message.unit).output_bytes;
    if (!sends) {
      value = builder_.add_device(forward ? BufferRole::kActivation : BufferRole::kGradOut,
                                  Category::kActivation, bytes, message.unit, message.microbatch);
    }
    SLUICE_CHECK(value != kNoId);
    Instruction& instruction = builder_.emit(message.op, sends ? Lane::kSend : Lane::kReceive,
                                             message.unit, message.microbatch);
    (sends ? instruction.reads : instruction.writes).push_back({value, 0, bytes});
    instruction.peer = builder_.world_rank(message.peer, model_.view.rank);
    instruction.tag = message.unit;
    instruction.bytes = bytes;
  }

  // Ends the save, before any instruction makes new state.
  void commit() {
    if (saver_) saver_->commit();
    saver_.reset();
  }

  // Selects the micro-batch's buffers. At its first pass creates them and uploads its tokens.
  void enter_microbatch(std::int32_t microbatch) {
    const auto mb = static_cast<std::size_t>(microbatch);
    if (buffers_.size() <= mb) buffers_.resize(mb + 1);
    MicrobatchBuffers& now = buffers_[mb];
    now_ = &now;
    if (now.entered) return;
    now.entered = true;
    const auto count = static_cast<std::size_t>(units());
    now.output.assign(count, kNoId);
    now.saved.assign(count, {});
    now.grad_output.assign(count, kNoId);
    now.context.assign(count, kNoId);
    if (!builder_.reads_tokens()) return;
    now.tokens = builder_.add_device(BufferRole::kTokens, Category::kActivation, model_.token_bytes,
                                     -1, microbatch);
    builder_.move(Op::kUpload, Lane::kH2D, -1, microbatch, -1,
                  {builder_.host_tokens(microbatch), 0, model_.token_bytes},
                  {now.tokens, 0, model_.token_bytes}, model_.token_bytes);
  }

  BufferId activation(BufferRole role, std::uint64_t bytes, const ComputeItem& item,
                      std::int32_t unit) {
    return builder_.add_device(role, Category::kActivation, bytes, unit, item.microbatch);
  }

  // Makes all saved values; in a Recompute, those that were not kept. A forward pass makes these
  // too, because it reads them itself, but they die with it.
  void make_saved(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    std::vector<BufferId>& saved = now_->saved[at];
    saved.resize(saved_values_[at].size(), kNoId);
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const SavedValue& value = saved_values_[at][i];
      if (item.op == Op::kRecompute && !value.remade) continue;
      saved[i] = builder_.add_saved(item.unit, item.microbatch, value.bytes, value.used_by);
      uses.writes.push_back(saved[i]);
    }
  }

  // Adds the saved values that serve this half of backward, or that a Recompute makes others from.
  void read_saved(const ComputeItem& item, PassUses& uses) const {
    const auto at = static_cast<std::size_t>(item.unit);
    for (std::size_t i = 0; i < saved_values_[at].size(); ++i) {
      const SavedValue& value = saved_values_[at][i];
      const bool made_here = item.op == Op::kRecompute && value.remade;
      if (touches(item, value) && !made_here) uses.reads.push_back(now_->saved[at][i]);
    }
  }

  // A head reads the targets and writes a loss. Other units write an output, except in most
  // Recomputes, which only repeat saved values.
  void use_forward(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.forward_workspace_bytes;
    if (unit.is_head) {
      uses.reads.push_back(now_->tokens);
      uses.loss = builder_.add_device(BufferRole::kLoss, Category::kActivation, sizeof(double), -1,
                                      item.microbatch);
      uses.writes.push_back(uses.loss);
    } else if (makes_output(item)) {
      now_->output[at] = activation(BufferRole::kActivation, unit.output_bytes, item, item.unit);
      uses.writes.push_back(now_->output[at]);
    }
    if (item.op == Op::kRecompute) read_saved(item, uses);
    make_saved(item, uses);
  }

  // Writes the gradient of the unit's input, which is the output gradient of the unit below, and
  // the context that the weight gradient needs.
  void use_backward_input(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.backward_input_workspace_bytes;
    read_saved(item, uses);
    uses.reads.push_back(now_->grad_output[at]);
    now_->context[at] = activation(BufferRole::kWeightContext, unit.context_bytes, item, item.unit);
    now_->grad_output[at - 1] = activation(
        BufferRole::kGradOut, footprint(item.unit - 1).output_bytes, item, item.unit - 1);
    uses.writes = {now_->grad_output[at - 1], now_->context[at]};
  }

  // Writes the weight gradient to a window, and that of a tied head also to the tied unit's window.
  void use_backward_weight(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.backward_weight_workspace_bytes;
    if (unit.is_head) uses.reads.push_back(now_->tokens);
    read_saved(item, uses);
    uses.reads.insert(uses.reads.end(), {now_->context[at], now_->grad_output[at]});
    const auto target = [&](std::int32_t gradient_unit) {
      const BufferId window = gradient_target(builder_, gradient_unit, item.microbatch);
      uses.gradients.emplace_back(gradient_unit, window);
      uses.writes.push_back(window);
    };
    target(item.unit);
    if (unit.borrows >= 0) target(builder_.tied_unit());
  }

  // A visit with passes that are being emitted.
  struct OpenVisit {
    std::span<const ComputeItem> items;  // those that are left
    std::vector<PassUses> uses;          // of all of them
    std::vector<std::vector<PassStep>> steps;
    std::size_t item = 0, step = 0;  // of the next step
    bool is_done() const { return item == items.size(); }
  };
  OpenVisit open_visit(std::span<const ComputeItem> items, const auto& window) {
    OpenVisit visit{items, {}, {}};
    enter_microbatch(items.front().microbatch);
    for (const ComputeItem& item : items) {
      std::vector<BufferId> windows;
      for (const WeightUse& read : weights_read(item)) windows.push_back(window(read));
      visit.uses.push_back(uses_of(item, windows));
      visit.steps.push_back(steps_of_pass(item));
    }
    return visit;
  }
  // The steps up to the next sum over ranks.
  void go_on(OpenVisit& visit) {
    for (bool cut = false; !cut && !visit.is_done();) {
      const ComputeItem& item = visit.items[visit.item];
      const std::vector<PassStep>& steps = visit.steps[visit.item];
      cut = !steps[visit.step].cuts.empty();
      emit_step(builder_, item, visit.uses[visit.item], steps, visit.step);
      if (++visit.step < steps.size()) continue;
      follow(item, visit.uses[visit.item]);
      ++visit.item;
      visit.step = 0;
    }
  }

  // The visits are interleaved from sum to sum. The end of a forward pass after its last sum comes
  // late: after the first steps of the next turn, which need not wait for that sum.
  void emit_turn(const Turn& turn, const auto& window) {
    if (late_ && late_->items.front().microbatch == first_of(turn).microbatch) finish_late_visit();
    std::vector<OpenVisit> visits;
    for (const auto& items : turn) visits.push_back(open_visit(items, window));
    go_on(visits.front());
    finish_late_visit();
    for (std::size_t next = 1; next < visits.size(); ++next) go_on(visits[next]);
    while (!visits.back().is_done()) {
      for (OpenVisit& visit : visits) {
        const bool ends = &visit == &visits.back() && visits.size() > 1 && may_end_late(visit);
        if (ends) {
          late_ = std::move(visit);
          return;
        }
        go_on(visit);
      }
    }
    for (OpenVisit& visit : visits) {
      while (!visit.is_done()) go_on(visit);
    }
  }
  // Whether no more than the end of a forward pass is left, and nothing moves its output.
  bool may_end_late(const OpenVisit& visit) const {
    return visit.items.back().op == Op::kForward && visit.item + 1 == visit.items.size() &&
           visit.step + 1 == visit.steps.back().size() && visit.steps.back().back().cuts.empty() &&
           !spills_activations(options().placement);
  }
  void finish_late_visit() {
    while (late_ && !late_->is_done()) go_on(*late_);
    late_.reset();
  }

  PassUses uses_of(const ComputeItem& item, const std::vector<BufferId>& windows) {
    PassUses uses;
    uses.reads = windows;
    const auto at = static_cast<std::size_t>(item.unit);
    uses.reads.push_back(at > 0 ? now_->output[at - 1] : now_->tokens);
    switch (item.op) {
      case Op::kForward:
      case Op::kLoss:
      case Op::kRecompute:
        use_forward(item, uses);
        break;
      case Op::kBackwardInput:
        use_backward_input(item, uses);
        break;
      case Op::kBackwardWeight:
        use_backward_weight(item, uses);
        break;
      default:
        throw InternalError("not a compute item");
    }
    uses.writes.push_back(builder_.add_device(BufferRole::kWorkspace, Category::kWorkspace,
                                              uses.workspace_bytes, item.unit, item.microbatch));
    std::erase(uses.reads, kNoId);
    std::erase(uses.writes, kNoId);
    return uses;
  }

  // The download of a pass's loss and the path of its gradients. An update in backward follows
  // right after the last gradient that it needs.
  void follow(const ComputeItem& item, const PassUses& uses) {
    if (uses.loss != kNoId) {
      builder_.move(Op::kDownload, Lane::kD2H, -1, item.microbatch, -1,
                    {uses.loss, 0, sizeof(double)},
                    {builder_.host_loss(item.microbatch), 0, sizeof(double)}, sizeof(double));
    }
    for (const auto& [unit, window] : uses.gradients) {
      gradients_.emit(unit, item.microbatch, window);
    }
    if (updates_in_backward() && completes_gradient(item)) {
      gradients_.then([this, unit = item.unit] {
        commit();
        if (delays_updates()) {
          make_delayed_update(unit);
        } else {
          updates_.emit_through(unit);
        }
      });
    }
  }

  std::vector<PassStep> steps_of_pass(const ComputeItem& item) const {
    const bool remakes = item.op == Op::kRecompute;
    return steps_of(builder_.tensor(), segments_of(footprint(item.unit), item.op),
                    !remakes || makes_output(item),
                    remakes ? options().recompute.parts_of(item.unit) : 0);
  }

  // One of a unit's updates, as soon as its gradient is complete. The passes that have begun, and
  // those of the micro-batches that a rule holds back, still read earlier versions.
  void make_delayed_update(std::int32_t unit) {
    const RankView& view = builder_.view();
    const bool has_version = !view.is_asynchronous() || view.rank == view.server_of(0) ||
                             view.rank == view.arrival_of(builder_.update());
    if (has_version) weight_versions_->begin_update(unit);
    UpdateStream(builder_, {unit},
                 {.gradients_complete = true, .version = builder_.gradient_version()})
        .emit_rest();
    if (has_version) {
      weight_versions_->end_update(unit);
    } else {
      weight_versions_->pass_over(unit);
    }
    emit_state_transfer(builder_, unit);
  }

  const StepModel& model_;
  StepBuilder builder_;
  GradientPath gradients_;
  UpdateStream deferred_updates_;
  UpdateStream updates_;
  std::vector<std::vector<SavedValue>> saved_values_;  // by unit
  std::vector<MicrobatchBuffers> buffers_;
  std::optional<OpenVisit> late_;     // its end comes after the next turn's first steps
  MicrobatchBuffers* now_ = nullptr;  // of the micro-batch that is being emitted
  bool tied_weights_returned_ = false;
  std::optional<WeightVersions> weight_versions_;
  std::optional<StateSaver> saver_;  // of a step that saves, until it has committed
};

}  // namespace

Schedule generate(const StepModel& model, const StepOptions& options, StepKind kind) {
  switch (kind) {
    case StepKind::kTraining:
      return StepGenerator(model, options, carries_updates(options)).training_step(false);
    case StepKind::kEvaluation:
      return StepGenerator(model, options).evaluation();
    case StepKind::kFirst:
      return StepGenerator(model, options).training_step(false);
    case StepKind::kDrain:
      SLUICE_CHECK(has_step(options, kind));
      return StepGenerator(model, options).drain();
    case StepKind::kRedo:
      SLUICE_CHECK(has_step(options, kind));
      return StepGenerator(model, options).redo();
    case StepKind::kSaving:
      return StepGenerator(model, options).training_step(true);
    case StepKind::kSave:
      return StepGenerator(model, options).save();
  }
  throw InternalError("no such kind of step");
}

Schedule generate_placed(const StepModel& model, const StepOptions& options, StepKind kind,
                         packing::PackingMemo* memo) {
  Schedule schedule = generate(model, options, kind);
  place_buffers(schedule, kTensorAlignmentBytes, packing::PackingEffort::kQuick, memo);
  return schedule;
}

// Places follow from the list alone, so it makes no difference that they come before the deps.
void link_placed(Schedule& schedule) {
  link(schedule);
  order_reuse(schedule);
}

Schedule compile(const StepModel& model, const StepOptions& options, StepKind kind) {
  Schedule schedule = generate_placed(model, options, kind);
  link_placed(schedule);
  return schedule;
}

StepSchedules compile_all(const StepModel& model, const StepOptions& options) {
  StepSchedules schedules;
  for (const StepKind kind : kStepKinds) {
    if (has_step(options, kind)) schedules[kind] = compile(model, options, kind);
  }
  return schedules;
}

}  // namespace sluice::schedule
