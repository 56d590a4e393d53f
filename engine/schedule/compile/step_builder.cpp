// 620 lines because homes, transients and releases are one table.
//
// Bookkeeping under the parts of a step. Homes come first in the list of buffers, in the same order
// for every schedule of a run, so that they have the same ids and places in all of them. At the end
// the last use of each transient buffer is known; a Release goes after it on the same lane.
#include "engine/schedule/compile/step_builder.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "engine/schedule/compile/compute_items.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::schedule {
namespace {

Category category_of(StateKind kind) {
  switch (kind) {
    case StateKind::kWeight:
      return Category::kWeight;
    case StateKind::kGradient:
      return Category::kGradient;
    default:
      return Category::kOptimizer;
  }
}

// Fills the place after an instruction with the Release of buffers that die there.
void release_after(std::vector<Instruction>& list, std::size_t at,
                   std::span<const BufferId> dying) {
  Instruction& release = list[at + 1] = Instruction();
  release.id = static_cast<InstructionId>(at + 1);
  release.op = Op::kRelease;
  release.lane = list[at].lane;
  release.unit = release.layer = list[at].unit;
  release.microbatch = list[at].microbatch;
  release.reads.reserve(dying.size());
  for (const BufferId id : dying) release.reads.push_back({id, 0, 0});
}

}  // namespace

StepBuilder::StepBuilder(const StepModel& model, const StepOptions& options,
                         std::int32_t weight_version)
    : model_(model), options_(options), versions_{weight_version, 0} {
  schedule_.slot_bytes = options.chunk_bytes;
  schedule_.shares_device = options.shares_device;
  SLUICE_CHECK(options.fold_groups > 0 && options.microbatches % options.fold_groups == 0);
  join_world();
  if (options.sum == GradientSum::kRing && !view().is_alone()) {
    SLUICE_CHECK(!view().shards_optimizer() && options.fold_groups == view().ranks &&
                 pipeline().is_alone());
    schedule_.folds_in_ring = true;
  }
  SLUICE_CHECK(!sums_within_nodes() ||
               (options.sum == GradientSum::kInOrder && options.fold_groups > 1 &&
                view().ranks % options.node_ranks == 0 &&
                std::has_single_bit(static_cast<unsigned>(options.node_ranks))));
  if (model.unit_optimizers.empty() && kernels::needs_whole_tensors(model.optimizer)) {
    for (const UnitFootprint& unit : model.units) {
      schedule_.tensor_borders.push_back(unit.tensor_borders);
    }
  }
  add_homes();
  if (pipeline().order.delays_updates()) declare_delays();
}

// The versions of all units, since all ranks have the same table.
void StepBuilder::declare_delays() {
  // Sums of one update must not wait behind the passes of the next.
  SLUICE_CHECK(options_.fold_groups == 1 && options_.exchange_lag == 0 && !options_.durable &&
               options_.update == UpdatePlacement::kInBackward && carried_units() == 0 &&
               !ties_ranks());
  DelayedUpdates& delayed = schedule_.delayed;
  delayed.updates = update_count(model_);
  delayed.microbatches = options_.microbatches;
  for (std::int32_t unit = 0; unit < unit_count(); ++unit) {
    std::vector<std::int32_t>& versions = delayed.versions.emplace_back();
    for (std::int32_t mb = 0; mb < total_microbatches(model_, options_); ++mb) {
      versions.push_back(delayed_version(unit, mb));
    }
  }
}

std::int32_t StepBuilder::delayed_version(std::int32_t unit, std::int32_t microbatch) const {
  const std::int32_t of_rank = view().is_asynchronous() ? microbatch : microbatch / view().ranks;
  return pipeline().order.version_of(pipeline().stage_of(unit), of_rank);
}

void StepBuilder::set_made_weights(std::int32_t unit, BufferId place) {
  made_homes_[index(unit)][static_cast<std::size_t>(StateKind::kWeight)] = place;
}

void StepBuilder::settle_made_weights(std::int32_t unit) {
  constexpr auto kWeight = static_cast<std::size_t>(StateKind::kWeight);
  homes_[index(unit)][kWeight] = made_homes_[index(unit)][kWeight];
}

BufferId StepBuilder::add_like(BufferId home, std::int32_t version) {
  Buffer buffer = schedule_.buffers[home];
  buffer.persistent = false;
  buffer.version = version;
  return add_transient(std::move(buffer));
}

// Lists the groups of the whole world, since all ranks have the same table: of the data-parallel
// ranks with the same parts of each pipeline rank, of the pipeline ranks of each place in a stage,
// of the two of these that a tied head joins, of the ranks that hold parts of the same units, of
// those that have parts of the same sequences, and of those that hold copies of the same key/value
// heads. A dimension of one rank has none.
void StepBuilder::join_world() {
  const std::int32_t data_ranks = view().ranks, tensor_ranks = tensor().ranks;
  const std::int32_t pipeline_ranks = pipeline().ranks();
  if (data_ranks * tensor_ranks * pipeline_ranks == 1) return;
  SLUICE_CHECK((options_.microbatches % data_ranks == 0 || view().is_asynchronous()) &&
               can_fold(options_.fold_groups, data_ranks));
  SLUICE_CHECK(
      pipeline().is_alone() ||
      (pipeline().order.microbatches == total_microbatches(model_, options_) / data_ranks &&
       pipeline().units.size() == pipeline().order.rank_of_stage.size() &&
       pipeline().units.back().end == unit_count()));
  schedule_.first_rank = world_rank(pipeline().rank, view().rank);
  schedule_.world_ranks = data_ranks * tensor_ranks * pipeline_ranks;
  const auto number = [&](std::int32_t p, std::int32_t d, std::int32_t t) {
    return (p * data_ranks + d) * tensor_ranks + t;
  };
  // A group for each of `count` places, with `size` members, by number in the world.
  const auto add_groups = [&](Dimension dimension, std::int32_t count, std::int32_t size,
                              const auto& member) {
    for (std::int32_t place = 0; place < count && size > 1; ++place) {
      Group group{{}, dimension};
      for (std::int32_t i = 0; i < size; ++i) group.ranks.push_back(member(place, i));
      std::sort(group.ranks.begin(), group.ranks.end());
      schedule_.groups.push_back(std::move(group));
    }
  };
  add_groups(Dimension::kData, pipeline_ranks * tensor_ranks, data_ranks,
             [&](std::int32_t place, std::int32_t d) {
               return number(place / tensor_ranks, d, place % tensor_ranks);
             });
  const auto of_stage = [&](std::int32_t p, std::int32_t place) {
    return number(p, place / tensor_ranks, place % tensor_ranks);
  };
  add_groups(Dimension::kPipeline, stage_ranks(), pipeline_ranks,
             [&](std::int32_t place, std::int32_t p) { return of_stage(p, place); });
  add_groups(Dimension::kPipeline, stage_ranks(), ties_ranks() ? 2 : 1,
             [&](std::int32_t place, std::int32_t end) {
               return of_stage(pipeline().rank_of(end == 0 ? 0 : unit_count() - 1), place);
             });
  const std::int32_t parts = tensor().parts();
  add_groups(Dimension::kTensor, schedule_.world_ranks / parts, parts,
             [&](std::int32_t place, std::int32_t t) { return place * parts + t; });
  add_groups(Dimension::kContext, schedule_.world_ranks / tensor().contexts, tensor().contexts,
             [&](std::int32_t place, std::int32_t c) {
               return place / parts * tensor_ranks + c * parts + place % parts;
             });
  const std::int32_t sharers = tensor().sharers;
  add_groups(Dimension::kTensor, schedule_.world_ranks / sharers, sharers,
             [&](std::int32_t place, std::int32_t t) { return place * sharers + t; });
}

ElemRange StepBuilder::shard(std::int32_t unit, std::int32_t rank) const {
  if (view().rotates) {
    const std::uint64_t elems = schedule::unit_elems(model_, unit);
    return {rank == view().server_of(update()) ? 0 : elems, elems};
  }
  return shard_of(model_, unit, rank);
}

ElemRange StepBuilder::home_range(StateKind kind, std::int32_t unit) const {
  return schedule::home_range(model_, kind, unit);
}

bool StepBuilder::rounds_gradients() const {
  return schedule::rounds_gradients(model_, options_);
}

std::uint64_t StepBuilder::unit_elems(std::int32_t unit) const {
  return schedule::unit_elems(model_, unit);
}

BufferId StepBuilder::home(StateKind kind, std::int32_t unit) const {
  return homes_[index(unit)][static_cast<std::size_t>(kind)];
}

BufferId StepBuilder::made_home(StateKind kind, std::int32_t unit) const {
  return made_homes_[index(unit)][static_cast<std::size_t>(kind)];
}

Tier StepBuilder::home_tier(StateKind kind, std::int32_t unit) const {
  const Placement& place = options_.placement;
  const std::size_t at = unit == tied_unit() ? 0 : index(unit);
  if (kind == StateKind::kWeight) return place.weight[at];
  return kind == StateKind::kGradient ? place.gradient[at] : place.optimizer[at];
}

BufferId StepBuilder::saved_home(StateKind kind, std::int32_t unit) const {
  return saved_homes_[index(unit)][static_cast<std::size_t>(kind)];
}

BufferId StepBuilder::add_persistent(Buffer buffer) {
  buffer.persistent = true;
  return add_transient(std::move(buffer));
}

BufferId StepBuilder::add_transient(Buffer buffer) {
  buffer.id = static_cast<BufferId>(schedule_.buffers.size());
  schedule_.buffers.push_back(std::move(buffer));
  return schedule_.buffers.back().id;
}

// Lists the home of one kind of a unit's state, of the range that this rank keeps. An empty range
// has no home.
BufferId StepBuilder::add_home(StateKind kind, std::int32_t unit, Tier tier, DType dtype) {
  const ElemRange range = home_range(kind, unit);
  if (range.elems() == 0) return kNoId;
  Buffer buffer;
  buffer.tier = tier;
  buffer.category = category_of(kind);
  buffer.dtype = dtype;
  buffer.unit = unit;
  buffer.kind = kind;
  buffer.first_elem = range.begin;
  buffer.elems = range.elems();
  buffer.bytes = bytes_of(dtype, buffer.elems);
  // Weights and 16-bit gradients on the device are read and written by kernels as whole units.
  buffer.window = tier == Tier::kDevice && dtype == model_.dtype &&
                  range.elems() == unit_elems(unit) &&
                  (kind == StateKind::kWeight || kind == StateKind::kGradient);
  return add_persistent(std::move(buffer));
}

// Lists the home of one kind of optimizer state, if the rule keeps that kind for this unit. State
// of whole tensors has its own numbering of elements, so its home is not as long as the unit, and a
// shard of tensors without such state has none.
void StepBuilder::add_optimizer_home(StateKind kind, std::int32_t unit) {
  const kernels::StateLayout layout = kernels::state_layout(model_.optimizer_of(unit), kind);
  const bool per_tensor = layout.extent == kernels::StateExtent::kPerTensor;
  const ElemRange sums = per_tensor ? sums_range(model_, unit) : ElemRange{};
  if (layout.extent == kernels::StateExtent::kAbsent || (per_tensor && sums.elems() == 0)) return;
  const BufferId id = add_home(kind, unit, optimizer_tier(unit), layout.dtype);
  homes_[index(unit)][static_cast<std::size_t>(kind)] = id;
  if (!per_tensor || id == kNoId) return;
  Buffer& buffer = schedule_.buffers[id];
  buffer.per_tensor = true;
  buffer.first_elem = sums.begin;
  buffer.elems = sums.elems();
  buffer.bytes = bytes_of(layout.dtype, sums.elems());
}

// Gives all state that a commit names two versions on storage.
void StepBuilder::add_versions() {
  saved_homes_.assign(model_.units.size(), {kNoId, kNoId, kNoId, kNoId, kNoId});
  for (std::int32_t unit = 0; unit < unit_count(); ++unit) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const BufferId id = homes_[index(unit)][k];
      if (id == kNoId || static_cast<StateKind>(k) == StateKind::kGradient) continue;
      if (schedule_.buffers[id].tier == Tier::kStorage) {
        schedule_.buffers[id].versions = 2;
        saved_homes_[index(unit)][k] = id;
        continue;
      }
      Buffer copy = schedule_.buffers[id];
      copy.tier = Tier::kStorage;
      copy.window = false;
      copy.log_copy = true;
      copy.versions = 2;
      saved_homes_[index(unit)][k] = add_persistent(std::move(copy));
    }
  }
}

// Adds a shadow copy for the home of all state that a speculative update makes. A deferred update
// knows its clip factor and needs none.
void StepBuilder::add_shadows() {
  for (std::int32_t unit = carried_units(); unit < unit_count(); ++unit) {
    for (std::size_t k = 0; k < kStateKindCount; ++k) {
      const BufferId id = homes_[index(unit)][k];
      if (id == kNoId || static_cast<StateKind>(k) == StateKind::kGradient) continue;
      Buffer shadow = schedule_.buffers[id];
      shadow.shadow_of = id;
      made_homes_[index(unit)][k] = add_persistent(std::move(shadow));
    }
  }
}

// The state of a unit that this rank passes through. The head's rank also keeps the weights of the
// unit that its head reads.
void StepBuilder::add_unit_homes(std::int32_t unit, DType gradient_dtype) {
  const Placement& place = options_.placement;
  const std::size_t at = index(unit);
  const auto set = [&](StateKind kind, Tier tier, DType dtype) {
    homes_[at][static_cast<std::size_t>(kind)] = add_home(kind, unit, tier, dtype);
  };
  const bool borrowed = unit == 0 && ties_ranks() && owns_head();
  if (owns(unit) || borrowed) set(StateKind::kWeight, place.weight[at], model_.dtype_of(unit));
  if (!owns(unit)) return;
  set(StateKind::kGradient, place.gradient[at], gradient_dtype);
  for (const StateKind kind : kOptimizerKinds) add_optimizer_home(kind, unit);
}

// The order of this list is the order of ids, and of places in memory: first the state of each
// unit, then the tied gradient, tokens and losses, and the scalars. Shadows and log copies come
// last, so that runs without them have the same ids for everything else.
void StepBuilder::add_homes() {
  const Placement& place = options_.placement;
  // Units of a host program differ, and their gradients are summed in their own dtype.
  const auto gradient_dtype = [this](std::int32_t unit) {
    return model_.unit_optimizers.empty() ? gradient_home_dtype(model_, options_)
                                          : model_.dtype_of(unit);
  };
  homes_.assign(model_.units.size() + 1, {kNoId, kNoId, kNoId, kNoId, kNoId});
  norm_blocks_of_earlier_units_ = {0};
  for (std::int32_t unit = 0; unit < unit_count(); ++unit) {
    add_unit_homes(unit, gradient_dtype(unit));
    norm_blocks_of_earlier_units_.push_back(norm_blocks_of_earlier_units_.back() +
                                            model_.units[index(unit)].norm_blocks_before.back());
  }
  // The sum of a tied use is added before it is rounded, so it has no rounded home.
  if (has_tied_unit() && owns_head() && !rounds_gradients()) {
    homes_.back()[static_cast<std::size_t>(StateKind::kGradient)] =
        add_home(StateKind::kGradient, tied_unit(), place.gradient[0], gradient_dtype(0));
  }

  const auto pinned = [&](BufferRole role, Category category, DType dtype, std::uint64_t bytes,
                          std::int32_t microbatch) {
    Buffer buffer;
    buffer.role = role;
    buffer.tier = Tier::kPinned;
    buffer.category = category;
    buffer.dtype = dtype;
    buffer.bytes = bytes;
    buffer.microbatch = microbatch;
    return add_persistent(std::move(buffer));
  };
  data_.tokens.assign(index(total_microbatches(model_, options_)), kNoId);
  data_.losses.assign(index(total_microbatches(model_, options_)), kNoId);
  // A host program computes with data of its own: its steps have neither tokens nor losses.
  const bool has_data = model_.token_bytes > 0;
  for (const std::int32_t mb :
       has_data ? own_microbatches(model_, options_) : std::vector<std::int32_t>()) {
    if (reads_tokens()) {
      data_.tokens[index(mb)] =
          pinned(BufferRole::kTokens, Category::kActivation, DType::kI32, model_.token_bytes, mb);
    }
    if (!owns_head()) continue;
    data_.losses[index(mb)] =
        pinned(BufferRole::kLoss, Category::kActivation, DType::kF64, sizeof(double), mb);
  }
  // Norm partials of all units lie in one array, in tensor order; those of several updates follow
  // each other.
  const auto updates = static_cast<std::uint64_t>(update_count(model_));
  shared_.norm_partials =
      pinned(BufferRole::kNormPartial, Category::kGradient, DType::kF64,
             updates * norm_blocks_of_earlier_units_.back() * sizeof(double), -1);
  // The global norm and the factor that gradients are multiplied by.
  shared_.clip_scalar =
      pinned(BufferRole::kScalar, Category::kGradient, DType::kF64, 2 * sizeof(double), -1);
  made_homes_ = homes_;
  if (options_.update == UpdatePlacement::kSpeculative) add_shadows();
  if (options_.durable) add_versions();
}

// A range begins and ends at multiples of 4,096 elements, which are borders of norm blocks.
Use StepBuilder::norm_partials_of(std::int32_t unit, ElemRange range) const {
  const auto& before = model_.units[index(unit)].norm_blocks_before;
  return norm_partials_of_blocks(
      unit, {before[range.begin / kLawBlockElems], before[ceil_div(range.end, kLawBlockElems)]});
}

Use StepBuilder::norm_partials_of_blocks(std::int32_t unit, ElemRange blocks) const {
  const std::uint64_t base =
      static_cast<std::uint64_t>(versions_.update) * norm_blocks_of_earlier_units_.back() +
      norm_blocks_of_earlier_units_[index(unit)];
  return {shared_.norm_partials, (base + blocks.begin) * sizeof(double),
          blocks.elems() * sizeof(double)};
}

Use StepBuilder::norm_partials() const {
  if (update_count(model_) == 1) return {shared_.norm_partials, 0, 0};
  const std::uint64_t bytes = norm_blocks_of_earlier_units_.back() * sizeof(double);
  return {shared_.norm_partials, static_cast<std::uint64_t>(versions_.update) * bytes, bytes};
}

// Windows take whole slots; the pool maps them (chunk_pool.hpp).
BufferId StepBuilder::add_window(StateKind kind, std::int32_t unit, std::uint64_t elems,
                                 DType dtype, std::int32_t microbatch, std::int32_t version) {
  Buffer buffer;
  buffer.tier = Tier::kDevice;
  buffer.category = category_of(kind);
  buffer.dtype = dtype;
  buffer.unit = unit;
  buffer.microbatch = microbatch;
  buffer.kind = kind;
  buffer.elems = elems;
  buffer.bytes = bytes_of(dtype, elems);
  buffer.version = version;
  buffer.window = true;
  return add_transient(std::move(buffer));
}

BufferId StepBuilder::add_received(StateKind kind, std::int32_t unit, ElemRange range, DType dtype,
                                   std::int32_t microbatch, std::int32_t version) {
  Buffer buffer;
  buffer.tier = Tier::kDevice;
  buffer.category = Category::kCommunication;
  buffer.dtype = dtype;
  buffer.unit = unit;
  buffer.microbatch = microbatch;
  buffer.kind = kind;
  buffer.first_elem = range.begin;
  buffer.elems = range.elems();
  buffer.bytes = bytes_of(dtype, range.elems());
  buffer.version = version;
  return add_transient(std::move(buffer));
}

BufferId StepBuilder::add_sum(Tier tier, std::int32_t unit, std::int32_t first_microbatch) {
  const BufferId id = add_received(StateKind::kGradient, unit, {0, unit_elems(unit)}, DType::kF32,
                                   first_microbatch, gradient_version());
  schedule_.buffers[id].tier = tier;
  schedule_.buffers[id].category = Category::kGradient;
  return id;
}

// The chunk number tells pieces of one unit apart in traces; ranges are what the checks compare.
BufferId StepBuilder::add_piece(Ring ring, StateKind kind, std::int32_t unit, ElemRange range,
                                DType dtype, std::int32_t version) {
  Buffer buffer;
  buffer.tier = Tier::kPinned;
  buffer.ring = static_cast<std::int32_t>(ring);
  buffer.category = category_of(kind);
  buffer.dtype = dtype;
  buffer.unit = unit;
  buffer.kind = kind;
  buffer.chunk = static_cast<std::int32_t>(range.begin / options_.piece_elems);
  buffer.first_elem = range.begin;
  buffer.elems = range.elems();
  buffer.bytes = bytes_of(dtype, range.elems());
  buffer.version = version;
  return add_transient(std::move(buffer));
}

BufferId StepBuilder::add_staged(Ring ring, BufferId home, ElemRange range, std::int32_t version) {
  const Buffer& from = schedule_.buffers[home];
  const bool per_tensor = from.per_tensor;
  const ElemRange covered =
      per_tensor ? ElemRange{from.first_elem, from.first_elem + from.elems} : range;
  const BufferId id = add_piece(ring, from.kind, from.unit, covered, from.dtype, version);
  schedule_.buffers[id].per_tensor = per_tensor;
  return id;
}

BufferId StepBuilder::add_update_workspace(Tier tier, std::int32_t unit) {
  Buffer buffer;
  buffer.role = BufferRole::kWorkspace;
  buffer.tier = tier;
  buffer.category = Category::kWorkspace;
  buffer.bytes = model_.units[index(unit)].update_workspace_bytes;
  if (tier == Tier::kPinned) buffer.ring = static_cast<std::int32_t>(Ring::kUpdates);
  buffer.unit = unit;
  return buffer.bytes == 0 ? kNoId : add_transient(std::move(buffer));
}

// Returns kNoId for no bytes: units without saved values or workspace have no such buffer.
// Where visits are interleaved, one buffer serves all sums, which run one after another. So no
// later value takes its memory and waits for a sum of another micro-batch.
BufferId StepBuilder::add_sum_scratch(std::uint64_t bytes, std::int32_t unit,
                                      std::int32_t microbatch) {
  if (options_.turns == 1 || bytes == 0) {
    return add_device(BufferRole::kWorkspace, Category::kCommunication, bytes, unit, microbatch);
  }
  BufferId& id = shared_.sum_scratch;
  if (id == kNoId) {
    id = add_device(BufferRole::kWorkspace, Category::kCommunication, bytes, -1, -1);
  }
  Buffer& scratch = schedule_.buffers[id];
  scratch.bytes = std::max(scratch.bytes, bytes);
  return id;
}

BufferId StepBuilder::add_device(BufferRole role, Category category, std::uint64_t bytes,
                                 std::int32_t unit, std::int32_t microbatch) {
  if (bytes == 0) return kNoId;
  Buffer buffer;
  buffer.role = role;
  buffer.tier = Tier::kDevice;
  buffer.category = category;
  buffer.bytes = bytes;
  buffer.unit = unit;
  buffer.microbatch = microbatch;
  return add_transient(std::move(buffer));
}

BufferId StepBuilder::add_saved(std::int32_t unit, std::int32_t microbatch, ElemRange bytes,
                                SavedFor used_by) {
  const BufferId id =
      add_device(BufferRole::kSaved, Category::kActivation, bytes.elems(), unit, microbatch);
  schedule_.buffers[id].used_by = used_by;
  schedule_.buffers[id].first_elem = bytes.begin;
  schedule_.buffers[id].elems = bytes.elems();
  return id;
}

Use StepBuilder::part(BufferId id, ElemRange range) const {
  const Buffer& buffer = schedule_.buffers[id];
  if (!buffer.per_tensor) return use_of(buffer, range);
  return use_of(buffer, {buffer.first_elem, buffer.first_elem + buffer.elems});
}

// Ids and deps come later: Releases are still to be inserted between the instructions.
Instruction& StepBuilder::emit(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch) {
  Instruction& instruction = schedule_.instructions.emplace_back();
  instruction.op = op;
  instruction.lane = lane;
  instruction.unit = unit;
  instruction.layer = unit;
  instruction.microbatch = microbatch;
  instruction.update = versions_.update;
  return instruction;
}

void StepBuilder::move(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch,
                       std::int32_t piece, Use from, Use to, std::uint64_t bytes) {
  Instruction& instruction = emit(op, lane, unit, microbatch);
  instruction.chunk = piece;
  instruction.reads.push_back(from);
  instruction.writes.push_back(to);
  instruction.bytes = bytes;
}

std::vector<ElemRange> StepBuilder::pieces(ElemRange range) const {
  std::vector<ElemRange> ranges;
  for (std::uint64_t begin = range.begin; begin < range.end; begin += options_.piece_elems) {
    ranges.push_back({begin, std::min(begin + options_.piece_elems, range.end)});
  }
  return ranges;
}

void StepBuilder::declare_segments() {
  if (tensor().is_alone()) return;
  for (const UnitFootprint& unit : model_.units) schedule_.segments.push_back(unit.segments);
}

void StepBuilder::declare_saved_parts() {
  for (const UnitFootprint& unit : model_.units) schedule_.saved_parts.push_back(unit.saved_parts);
}

// A transient buffer dies with its last use in list order. All buffers that die with one
// instruction share one Release after it, on that instruction's lane.
Schedule StepBuilder::finish(const StepBorders& borders, std::span<const BufferId> kept) {
  // The last instruction that touches each transient buffer.
  std::vector<std::size_t> last_use(schedule_.buffers.size(), SIZE_MAX);
  for (std::size_t i = 0; i < schedule_.instructions.size(); ++i) {
    for (const auto* uses : {&schedule_.instructions[i].reads, &schedule_.instructions[i].writes}) {
      for (const Use& use : *uses) last_use[use.buffer] = i;
    }
  }
  for (const auto& [id, through] : held_) last_use[id] = std::max(last_use[id], through);
  for (const BufferId id : kept) {
    if (last_use[id] != SIZE_MAX) last_use[id] = schedule_.instructions.size() - 1;
  }
  // The buffers that die, by last use: those of instruction i are dying[ends[i] .. ends[i + 1]).
  const auto dies = [&](const Buffer& buffer) {
    return !buffer.persistent && last_use[buffer.id] != SIZE_MAX;
  };
  std::vector<std::uint32_t> ends(schedule_.instructions.size() + 2);
  for (const Buffer& buffer : schedule_.buffers) {
    if (dies(buffer)) ++ends[last_use[buffer.id] + 2];
  }
  const auto releases = std::count_if(ends.begin(), ends.end(), [](auto n) { return n > 0; });
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<BufferId> dying(ends.back());
  for (const Buffer& buffer : schedule_.buffers) {
    if (dies(buffer)) dying[ends[last_use[buffer.id] + 1]++] = buffer.id;
  }
  // From the end on, so that the list needs no second place.
  std::vector<Instruction>& list = schedule_.instructions;
  std::size_t i = list.size();
  list.resize(list.size() + static_cast<std::size_t>(releases));
  for (std::size_t to = list.size(); i-- > 0;) {
    const bool dying_here = ends[i] < ends[i + 1];
    const std::size_t at = to - (dying_here ? 2 : 1);
    if (at != i) list[at] = std::move(list[i]);
    list[at].id = static_cast<InstructionId>(at);
    if (dying_here) {
      release_after(list, at, std::span(dying).subspan(ends[i], ends[i + 1] - ends[i]));
    }
    to = at;
  }
  declare_residency(borders);
  return std::move(schedule_);
}

// Entry lists the state that the step finds, exit the state that it leaves, each with the version.
// Two schedules compose where the exit of one equals the entry of the other.
void StepBuilder::declare_residency(const StepBorders& borders) {
  const bool commits = std::any_of(schedule_.instructions.begin(), schedule_.instructions.end(),
                                   [](const Instruction& i) { return i.op == Op::kCommit; });
  for (const Buffer& buffer : schedule_.buffers) {
    if (!buffer.persistent || buffer.role != BufferRole::kState || buffer.log_copy) continue;
    // The state is where the first server is; the other ranks' homes wait for it.
    const bool visits = view().rotates && view().rank > 0 && buffer.kind != StateKind::kWeight &&
                        buffer.kind != StateKind::kGradient;
    if (visits) continue;
    const bool deferred = buffer.unit < carried_units();
    const StepBorders::OfUnits& border = deferred ? borders.deferred : borders.others;
    Residency residency{buffer.kind, buffer.unit, -1, buffer.id, border.entry_version};
    if (buffer.shadow_of != kNoId) {
      // A shadow holds nothing between steps.
      residency.version = border.exit_version;
      if (border.exit_version > border.entry_version) schedule_.exit.push_back(residency);
      continue;
    }
    if (buffer.kind == StateKind::kGradient) {
      // Without a pending update a gradient is made and used up within one step. A tied use's
      // gradient always is.
      if (buffer.unit == tied_unit()) continue;
      residency.version = 1;
      if (border.pending_at_entry) schedule_.entry.push_back(residency);
      residency.version = gradient_version();
      if (border.pending_at_exit) schedule_.exit.push_back(residency);
      continue;
    }
    schedule_.entry.push_back(residency);
    if (commits) {
      Residency saved = residency;
      saved.home = saved_home(buffer.kind, buffer.unit);
      schedule_.commit.push_back(saved);
    }
    // State with a shadow stays as found, since the update writes to the shadow.
    const bool kept = made_home(buffer.kind, buffer.unit) != buffer.id;
    if (!kept) residency.version = border.exit_version;
    schedule_.exit.push_back(residency);
  }
}

}  // namespace sluice::schedule
