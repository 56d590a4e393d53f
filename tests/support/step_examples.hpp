// Small training steps for tests of schedules: models of a few units, and options that cover tiers,
// dtypes, micro-batches, recomputation, chunk and piece sizes. Plain data, no kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "engine/schedule/compile/generate.hpp"

namespace sluice::testing {

// Tensors of 3, 1 and more blocks as far as the unit has them, of which the second has no sums.
inline void cut_tensors(schedule::UnitFootprint& unit) {
  constexpr std::uint64_t kBlock = 4096;
  unit.tensor_borders = {{0, 0}};
  if (unit.elems > 3 * kBlock) unit.tensor_borders.push_back({3 * kBlock, 2 * kBlock});
  if (unit.elems > 4 * kBlock) unit.tensor_borders.push_back({4 * kBlock, 2 * kBlock});
  unit.tensor_state_elems = unit.tensor_borders.back().sum + 1024;
  unit.tensor_borders.push_back({unit.elems, unit.tensor_state_elems});
  unit.update_workspace_bytes = 8192;
}

// Embedding, `blocks` equal blocks and a head, as a decoder has. Sizes are small but uneven, so
// that the last piece and the last slot of a unit are partly filled.
inline schedule::StepModel example_model(int blocks, bool tied, DType dtype,
                                         kernels::OptimizerOptions optimizer = {}) {
  schedule::StepModel model;
  model.dtype = dtype;
  model.optimizer = optimizer;
  model.optimizer.weight = dtype;
  model.token_bytes = 512;
  const auto add = [&](const char* name, std::uint64_t elems) -> schedule::UnitFootprint& {
    schedule::UnitFootprint unit;
    unit.name = name;
    unit.elems = elems;
    unit.output_bytes = 8192;
    unit.saved_bytes = 12288;
    unit.context_bytes = 4096;
    unit.forward_workspace_bytes = 2048;
    unit.backward_input_workspace_bytes = 4096;
    unit.backward_weight_workspace_bytes = 1024;
    if (kernels::needs_whole_tensors(model.optimizer)) cut_tensors(unit);
    for (std::uint64_t block = 0; block <= elems / 4096; ++block) {
      unit.norm_blocks_before.push_back(block);
    }
    model.units.push_back(std::move(unit));
    return model.units.back();
  };
  schedule::UnitFootprint& embedding = add("embedding", 5 * 4096);
  embedding.has_input = false;
  embedding.saved_bytes = 0;
  embedding.context_bytes = 0;
  for (int i = 0; i < blocks; ++i) add("block", 7 * 4096).recomputable = true;
  schedule::UnitFootprint& head = add("head", tied ? 4096 : 6 * 4096);
  head.is_head = true;
  head.output_bytes = 0;
  if (tied) {
    head.borrows = 0;
    model.tied_elems = 3 * 4096;
  }
  return model;
}

// Cuts the saved activations of blocks into parts as uneven as their sizes allow, for one half of
// backward or for both; 40,192 bytes in all. They are made from each other out of order.
inline void cut_saved(schedule::StepModel& model) {
  for (schedule::UnitFootprint& unit : model.units) {
    if (!unit.recomputable) continue;
    using schedule::MadeBy;
    using schedule::SavedFor;
    const auto bit = schedule::part_bit;
    unit.saved_parts = {
        {"first", 16640, SavedFor::kBackwardInput, MadeBy::kProduct, bit(3), 0},
        {"second", 256, SavedFor::kBackwardInput, MadeBy::kAttention, bit(0), bit(2)},
        {"third", 5120, SavedFor::kBoth, MadeBy::kAttention, bit(0), bit(1)},
        {"fourth", 9728, SavedFor::kBackwardWeight, MadeBy::kElementwise, schedule::kUnitInput, 0},
        {"fifth", 8448, SavedFor::kBackwardWeight, MadeBy::kElementwise, bit(0) | bit(2), 0}};
    unit.saved_bytes = 40192;
  }
}

// Each part of each unit anywhere; a function of the seed.
inline void scatter_saved(const schedule::StepModel& model, std::uint64_t seed,
                          schedule::Placement& placement) {
  const CounterRng random(seed, stream_of("test/saved_places"));
  std::uint64_t draw = 0;
  placement.saved.clear();
  for (const schedule::UnitFootprint& unit : model.units) {
    placement.saved.emplace_back();
    for (std::size_t part = 0; part < unit.saved_parts.size(); ++part) {
      placement.saved.back().push_back(static_cast<Tier>(random.below(draw++, 3)));
    }
  }
}

// One of each way of keeping state: fp32, split master, 8-bit moments, no moments, sums of whole
// tensors with and without a first moment.
inline std::vector<kernels::OptimizerOptions> example_optimizers() {
  std::vector<kernels::OptimizerOptions> optimizers(7);
  optimizers[1].split_master = true;
  optimizers[2].split_master = true;
  optimizers[2].moments = DType::kBlock8;
  optimizers[3].rule = kernels::OptimizerRule::kSgd;
  optimizers[3].momentum = 0;
  optimizers[4].rule = kernels::OptimizerRule::kAdafactor;
  optimizers[5].rule = kernels::OptimizerRule::kMuon;
  optimizers[5].moments = DType::kBF16;
  optimizers[6].rule = kernels::OptimizerRule::kSm3;
  optimizers[6].split_master = true;
  return optimizers;
}

inline schedule::Placement placed(std::size_t units, Tier weight, Tier gradient, Tier optimizer,
                                  Tier activation = Tier::kDevice) {
  return {std::vector<Tier>(units, weight), std::vector<Tier>(units, gradient),
          std::vector<Tier>(units, optimizer), std::vector<Tier>(units, activation)};
}

inline schedule::StepOptions example_options(const schedule::StepModel& model, Tier weight,
                                             Tier gradient, Tier optimizer,
                                             Tier activation = Tier::kDevice) {
  schedule::StepOptions options;
  options.microbatches = 2;
  options.chunk_bytes = 2 * 4096 * 4;
  options.piece_elems = 3 * 4096;
  options.placement = placed(model.units.size(), weight, gradient, optimizer, activation);
  return options;
}

// Everything on the device, no recomputation: the run that law 1 compares with.
inline schedule::StepOptions resident_options(const schedule::StepModel& model,
                                              std::int32_t microbatches) {
  schedule::StepOptions options =
      example_options(model, Tier::kDevice, Tier::kDevice, Tier::kDevice);
  options.microbatches = microbatches;
  return options;
}

// A tied or an untied model with one of the ways of keeping state, by the seed.
inline schedule::StepModel drawn_model(std::uint64_t seed) {
  const std::vector<kernels::OptimizerOptions> optimizers = example_optimizers();
  return example_model(2, seed % 2 == 0, seed % 4 == 3 ? DType::kF32 : DType::kBF16,
                       optimizers[seed % optimizers.size()]);
}

// Nested segments of units [begin, end), which have run `run` times before: a unit keeps its parts
// of that run, or the units up to some later input run once more.
template <typename Below>
void nest_segments(schedule::Recomputation& recompute, std::size_t begin, std::size_t end,
                   std::int32_t run, const schedule::StepModel& model, const Below& below) {
  while (begin < end) {
    const std::uint64_t most = end - begin;
    const auto next = static_cast<std::size_t>(begin + 1 + (most > 1 ? below(most - 1) : 0));
    schedule::UnitRecompute& last = recompute.units[next - 1];
    if (next < end) last.output_run = run;
    if (next == begin + 1 && (most == 1 || below(2) == 0)) {
      last.parts = run == 0 ? 0 : schedule::all_parts(model.units[begin].saved_parts);
      last.parts_run = std::max(run, 1);
    } else {
      nest_segments(recompute, begin, next, run + 1, model, below);
    }
    begin = next;
  }
}

// Each unit keeps its parts, recomputes all of them, or some; some units form segments, which may
// be nested. A function of the seed.
inline schedule::Recomputation random_recompute(const schedule::StepModel& model,
                                                std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/recompute"));
  std::uint64_t draw = 0;
  schedule::Recomputation recompute;
  const auto count = static_cast<std::size_t>(
      std::count_if(model.units.begin(), model.units.end(),
                    [](const schedule::UnitFootprint& unit) { return unit.recomputable; }));
  if (random.below(draw++, 3) == 0) {
    recompute.units.resize(model.units.size());
    nest_segments(recompute, 1, 1 + count, 0, model,
                  [&](std::uint64_t bound) { return random.below(draw++, bound); });
    return recompute;
  }
  const bool mostly_whole = random.below(draw++, 2) == 0;
  for (const schedule::UnitFootprint& unit : model.units) {
    const schedule::PartMask all = schedule::all_parts(unit.saved_parts);
    schedule::PartMask mask = 0;
    if (unit.recomputable) {
      std::uint64_t kind = random.below(draw++, 4);
      if (mostly_whole && random.below(draw++, 4) > 0) kind = 1;
      if (kind == 1) mask = all;
      if (kind > 1) mask = static_cast<schedule::PartMask>(random.below(draw++, all + 1ull));
    }
    for (std::size_t part = 0; part < unit.saved_parts.size(); ++part) {
      if ((mask & schedule::part_bit(part)) != 0) mask |= unit.saved_parts[part].made_with;
    }
    recompute.units.push_back({mask});
  }
  for (schedule::UnitRecompute& unit : recompute.units) {
    if (random.below(draw++, 3) == 0) continue;
    unit.output_run = 1;
    if (!schedule::is_possible(model, recompute)) unit.output_run = 0;
  }
  return recompute;
}

// Anything that a run may be configured to; a function of the seed.
inline schedule::StepOptions random_options(const schedule::StepModel& model,
                                            std::int32_t microbatches, std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/step_options"));
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(draw++, bound); };
  schedule::StepOptions options;
  options.microbatches = microbatches;
  if (below(2) == 0) options.recompute = random_recompute(model, seed);
  options.chunk_bytes = 4096 * (4 + 4 * below(4));
  options.piece_elems = 4096 * (1 + below(8));
  options.prefetch = static_cast<std::int32_t>(below(3));
  options.stream_lookahead = static_cast<std::int32_t>(1 + below(3));
  options.shares_device = below(2) == 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const auto optimizer = static_cast<Tier>(below(3));
    const bool device = optimizer == Tier::kDevice;
    options.placement.optimizer.push_back(optimizer);
    options.placement.weight.push_back(device ? Tier::kDevice : static_cast<Tier>(below(3)));
    options.placement.gradient.push_back(device ? Tier::kDevice : static_cast<Tier>(below(3)));
  }
  options.order =
      below(2) == 0 ? schedule::ComputeOrder::kUnit : schedule::ComputeOrder::kMicrobatch;
  if (below(2) == 0) {
    options.update_piece_elems = 4096 * (1 + below(8));
    options.update_lookahead = static_cast<std::int32_t>(below(12));
    options.keeps_update_ring = options.update_lookahead % 2 == 0;
  }
  if (below(2) == 0) return options;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    options.placement.activation.push_back(static_cast<Tier>(below(3)));
  }
  return options;
}

}  // namespace sluice::testing
