// Ranges follow from the view alone, so the schedule builder and the planner agree on what a home
// holds without building a schedule.
#include "engine/schedule/compile/rank_share.hpp"

#include <bit>

namespace sluice::schedule {

std::uint64_t unit_elems(const StepModel& model, std::int32_t unit) {
  const auto at = static_cast<std::size_t>(unit);
  return at == model.units.size() ? model.tied_elems : model.units[at].elems;
}

ElemRange shard_of(const StepModel& model, std::int32_t unit, std::int32_t rank) {
  if (model.view.is_alone()) return {0, unit_elems(model, unit)};
  return model.view.shards[static_cast<std::size_t>(unit)][static_cast<std::size_t>(rank)];
}

ElemRange home_range(const StepModel& model, StateKind kind, std::int32_t unit) {
  const RankView& view = model.view;
  if (view.rotates) return {0, unit_elems(model, unit)};
  const bool sharded = kind == StateKind::kWeight ? view.shards_weights() : view.shards_optimizer();
  return sharded ? shard_of(model, unit, view.rank) : ElemRange{0, unit_elems(model, unit)};
}

ElemRange sums_range(const StepModel& model, std::int32_t unit) {
  const auto at = static_cast<std::size_t>(unit);
  const RankView& view = model.view;
  if (!view.shards_optimizer() || view.rotates) return {0, model.units[at].tensor_state_elems};
  return view.sums[at][static_cast<std::size_t>(view.rank)];
}

// A sum that is complete in one exchange need not wait in fp32: with one micro-batch for each rank,
// and with groups, which are exchanged when they are summed. Ranks without shards apply the whole
// gradient, which they gather rounded.
bool rounds_gradients(const StepModel& model, const StepOptions& options) {
  const RankView& view = model.view;
  if (view.is_alone()) return false;
  return !view.shards_optimizer() || options.fold_groups > 1 || options.microbatches == view.ranks;
}

DType gradient_home_dtype(const StepModel& model, const StepOptions& options) {
  return rounds_gradients(model, options) ? model.dtype
                                          : accumulator_dtype(model, options.microbatches);
}

bool has_partial_sums(const StepModel& model, const StepOptions& options) {
  return !model.view.is_alone() && options.fold_groups > 1 &&
         own_microbatch_count(model, options) > 1;
}

// A rank has a power of two of groups. Its sums are those of a binary counter (group_sums), in
// which the last group is never complete before the end, and one group may be incomplete besides
// them.
std::int32_t partial_sums_at_once(const StepModel& model, const StepOptions& options) {
  if (!has_partial_sums(model, options)) return 0;
  const std::int32_t own_groups = options.fold_groups / model.view.ranks;
  const std::int32_t group_size = options.microbatches / options.fold_groups;
  const auto complete =
      static_cast<std::int32_t>(std::bit_width(static_cast<unsigned>(own_groups))) - 1;
  return complete + (group_size > 1 ? 1 : 0);
}

std::int32_t own_microbatch_count(const StepModel& model, const StepOptions& options) {
  return model.view.is_asynchronous() ? 1 : options.microbatches / model.view.ranks;
}

}  // namespace sluice::schedule
