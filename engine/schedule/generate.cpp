#include "engine/schedule/generate.hpp"

#include "base/error.hpp"
#include "engine/schedule/link.hpp"
#include "engine/schedule/pack.hpp"
#include "engine/schedule/step_builder.hpp"

namespace sluice {
namespace {

struct ComputeItem {
  Op op;
  std::int32_t unit;
  std::int32_t microbatch;
};

// Buffers of one micro-batch between its instructions.
struct MicrobatchBuffers {
  BufferId tokens = kNoId;
  std::vector<BufferId> output;       // by unit
  std::vector<BufferId> saved;        // by unit
  std::vector<BufferId> grad_output;  // by unit: gradient of its output
  std::vector<BufferId> context;      // by unit
};

class StepGenerator {
 public:
  StepGenerator(const StepModel& model, const StepOptions& options)
      : model_(model), options_(options), builder_(model, options) {}

  Schedule training_step(bool saves) {
    std::vector<ComputeItem> items;
    for (std::int32_t mb = 0; mb < options_.microbatches; ++mb) append_microbatch(items, mb);
    if (saves) saver_.emplace(builder_);
    emit_items(items);
    if (saves) saver_->commit();
    emit_tied_fold(builder_);
    emit_optimizer(builder_);
    return builder_.finish(1);
  }

  Schedule evaluation() {
    std::vector<ComputeItem> items;
    for (std::int32_t unit = 0; unit < units(); ++unit) items.push_back({Op::kForward, unit, 0});
    emit_items(items);
    return builder_.finish(0);
  }

  Schedule save() {
    StateSaver(builder_).commit();
    return builder_.finish(0);
  }

 private:
  std::int32_t units() const { return builder_.unit_count(); }
  const UnitFootprint& footprint(std::int32_t unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }
  bool recomputed(std::int32_t unit) const {
    return options_.recompute && footprint(unit).recomputable;
  }

  void append_microbatch(std::vector<ComputeItem>& items, std::int32_t mb) const {
    const std::int32_t head = units() - 1;
    for (std::int32_t unit = 0; unit < head; ++unit) items.push_back({Op::kForward, unit, mb});
    items.push_back({Op::kLoss, head, mb});
    for (std::int32_t unit = head; unit >= 0; --unit) {
      if (recomputed(unit)) items.push_back({Op::kRecompute, unit, mb});
      if (footprint(unit).has_input) items.push_back({Op::kBackwardInput, unit, mb});
      items.push_back({Op::kBackwardWeight, unit, mb});
    }
  }

  // The head's weight gradient needs its logits again; other units' needs no weights.
  std::vector<std::int32_t> weights_read(const ComputeItem& item) const {
    const UnitFootprint& unit = footprint(item.unit);
    if (item.op == Op::kBackwardWeight && !unit.is_head) return {};
    std::vector<std::int32_t> read{item.unit};
    const bool borrows = unit.borrows >= 0 && item.op != Op::kBackwardInput;
    if (borrows) read.push_back(unit.borrows);
    return read;
  }

  void emit_items(const std::vector<ComputeItem>& items) {
    std::vector<std::vector<std::int32_t>> uses;
    for (const ComputeItem& item : items) uses.push_back(weights_read(item));
    WeightStream weights(builder_, uses);
    for (std::size_t i = 0; i < items.size(); ++i) {
      weights.advance(i);
      if (i == 0 || items[i].microbatch != items[i - 1].microbatch) begin_microbatch(items[i]);
      std::vector<BufferId> windows;
      for (const std::int32_t unit : uses[i]) windows.push_back(weights.window(unit));
      emit_compute(items[i], windows);
      if (saver_) saver_->advance(i + 1, items.size());
    }
  }

  void begin_microbatch(const ComputeItem& item) {
    const auto count = static_cast<std::size_t>(units());
    now_ = {};
    now_.output.assign(count, kNoId);
    now_.saved.assign(count, kNoId);
    now_.grad_output.assign(count, kNoId);
    now_.context.assign(count, kNoId);
    now_.tokens = builder_.add_device(BufferRole::kTokens, Category::kActivation,
                                      model_.token_bytes, -1, item.microbatch);
    builder_.move(Op::kUpload, Lane::kH2D, -1, item.microbatch, -1,
                  {builder_.host_tokens(item.microbatch), 0, model_.token_bytes},
                  {now_.tokens, 0, model_.token_bytes}, model_.token_bytes);
  }

  BufferId activation(BufferRole role, std::uint64_t bytes, const ComputeItem& item,
                      std::int32_t unit) {
    return builder_.add_device(role, Category::kActivation, bytes, unit, item.microbatch);
  }

  // What one pass touches, and what follows it.
  struct PassUses {
    std::vector<BufferId> reads;
    std::vector<BufferId> writes;
    BufferId loss = kNoId;
    std::vector<std::pair<std::int32_t, BufferId>> gradients;  // (unit, window written)
    std::uint64_t workspace_bytes = 0;
  };

  void use_forward(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.forward_workspace_bytes;
    now_.saved[at] = activation(BufferRole::kSaved, unit.saved_bytes, item, item.unit);
    if (item.op == Op::kRecompute) {
      uses.writes = {now_.saved[at]};
    } else if (unit.is_head) {
      uses.reads.push_back(now_.tokens);
      uses.loss = builder_.add_device(BufferRole::kLoss, Category::kActivation, sizeof(double), -1,
                                      item.microbatch);
      uses.writes = {uses.loss, now_.saved[at]};
    } else {
      now_.output[at] = activation(BufferRole::kActivation, unit.output_bytes, item, item.unit);
      uses.writes = {now_.output[at], now_.saved[at]};
    }
  }

  void use_backward_input(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.backward_input_workspace_bytes;
    uses.reads.insert(uses.reads.end(), {now_.saved[at], now_.grad_output[at]});
    now_.context[at] = activation(BufferRole::kWeightContext, unit.context_bytes, item, item.unit);
    now_.grad_output[at - 1] = activation(
        BufferRole::kGradOut, footprint(item.unit - 1).output_bytes, item, item.unit - 1);
    uses.writes = {now_.grad_output[at - 1], now_.context[at]};
  }

  void use_backward_weight(const ComputeItem& item, PassUses& uses) {
    const auto at = static_cast<std::size_t>(item.unit);
    const UnitFootprint& unit = footprint(item.unit);
    uses.workspace_bytes = unit.backward_weight_workspace_bytes;
    if (unit.is_head) uses.reads.push_back(now_.tokens);
    uses.reads.insert(uses.reads.end(), {now_.saved[at], now_.context[at], now_.grad_output[at]});
    const auto target = [&](std::int32_t gradient_unit) {
      const BufferId window = gradient_target(builder_, gradient_unit, item.microbatch);
      uses.gradients.emplace_back(gradient_unit, window);
      uses.writes.push_back(window);
    };
    target(item.unit);
    if (unit.borrows >= 0) target(builder_.tied_unit());
  }

  void emit_compute(const ComputeItem& item, const std::vector<BufferId>& windows) {
    PassUses uses;
    uses.reads = windows;
    const auto at = static_cast<std::size_t>(item.unit);
    uses.reads.push_back(at > 0 ? now_.output[at - 1] : now_.tokens);
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

    Instruction& instruction = builder_.emit(item.op, Lane::kCompute, item.unit, item.microbatch);
    for (const BufferId id : uses.reads) {
      if (id != kNoId) instruction.reads.push_back({id, 0, 0});
    }
    for (const BufferId id : uses.writes) {
      if (id != kNoId) instruction.writes.push_back({id, 0, 0});
    }
    if (uses.loss != kNoId) {
      builder_.move(Op::kDownload, Lane::kD2H, -1, item.microbatch, -1,
                    {uses.loss, 0, sizeof(double)},
                    {builder_.host_loss(item.microbatch), 0, sizeof(double)}, sizeof(double));
    }
    for (const auto& [unit, window] : uses.gradients) {
      emit_gradient_path(builder_, unit, item.microbatch, window);
    }
  }

  const StepModel& model_;
  const StepOptions& options_;
  StepBuilder builder_;
  MicrobatchBuffers now_;
  std::optional<StateSaver> saver_;
};

Schedule compile(Schedule schedule) {
  link(schedule);
  pack(schedule);
  return schedule;
}

}  // namespace

Schedule generate_training_step(const StepModel& model, const StepOptions& options) {
  return StepGenerator(model, options).training_step(false);
}

Schedule generate_saving_step(const StepModel& model, const StepOptions& options) {
  return StepGenerator(model, options).training_step(true);
}

Schedule generate_save(const StepModel& model, const StepOptions& options) {
  return StepGenerator(model, options).save();
}

Schedule generate_evaluation(const StepModel& model, const StepOptions& options) {
  return StepGenerator(model, options).evaluation();
}

Schedule compile_training_step(const StepModel& model, const StepOptions& options) {
  return compile(generate_training_step(model, options));
}

Schedule compile_saving_step(const StepModel& model, const StepOptions& options) {
  return compile(generate_saving_step(model, options));
}

Schedule compile_save(const StepModel& model, const StepOptions& options) {
  return compile(generate_save(model, options));
}

Schedule compile_evaluation(const StepModel& model, const StepOptions& options) {
  return compile(generate_evaluation(model, options));
}

}  // namespace sluice
