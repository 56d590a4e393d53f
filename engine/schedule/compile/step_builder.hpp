// Builds a step's instruction list: buffers, uses, and a Release after each transient's last use.
//
// The parts of a step (weight_stream, activation_stream, gradient_path, update_stream, state_save)
// append to one builder, which generate.cpp drives. The order of emission is the order of the list.
// It fixes lifetimes, so a part emits a transfer as early as its memory may be taken.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "engine/schedule/compile/rank_share.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// The borders of a step, for units of deferred updates and all others. Versions are those of all
// state but gradients. An update that is pending at entry applies gradients of version 1 to 0.
struct StepBorders {
  struct OfUnits {
    std::int32_t entry_version = 0;
    std::int32_t exit_version = 0;
    bool pending_at_entry = false;
    bool pending_at_exit = false;  // this step's own gradients wait
  };
  OfUnits deferred;
  OfUnits others;
};

// The streams that stage pieces in pinned memory. Their numbers are those of the rings
// (Buffer::ring).
enum class Ring : std::int32_t {
  kWeights,    // fetches from storage
  kGradients,  // downloads, and sums that a micro-batch reads and writes back
  kSums,       // sums that wait in pinned memory for the next micro-batch
  kTiedFold,
  kUpdates,
  kSaves,
  kSpills,   // of activations to storage
  kFetches,  // of activations from storage
};

class StepBuilder {
 public:
  // weight_version: the version of the weights that the passes read.
  StepBuilder(const StepModel& model, const StepOptions& options, std::int32_t weight_version);

  const StepModel& model() const { return model_; }
  const StepOptions& options() const { return options_; }
  std::int32_t unit_count() const { return static_cast<std::int32_t>(model_.units.size()); }
  // The number of the tied unit, which has only a gradient.
  std::int32_t tied_unit() const { return unit_count(); }
  std::int32_t carried_units() const {
    return schedule::carried_units(options_, model_.units.size());
  }
  // Elements of the window, which holds the whole unit.
  std::uint64_t unit_elems(std::int32_t unit) const;
  const RankView& view() const { return model_.view; }
  const StageView& pipeline() const { return model_.pipeline; }
  // Whether this rank passes through the unit and keeps its state.
  bool owns(std::int32_t unit) const { return pipeline().owns(unit); }
  // A tied head reads the window of its tensor's unit. Where that unit is of another rank, the
  // head's rank keeps a copy of its weights and the sum of the tied use (tied_stages.hpp).
  bool has_tied_unit() const { return model_.tied_elems > 0; }
  bool ties_ranks() const {
    return has_tied_unit() && pipeline().rank_of(0) != pipeline().rank_of(unit_count() - 1);
  }
  bool owns_head() const { return owns(unit_count() - 1); }
  // The first unit reads tokens, the head targets.
  bool reads_tokens() const { return owns(0) || owns_head(); }
  std::int32_t world_rank(std::int32_t pipeline_rank, std::int32_t data_rank) const {
    return schedule::world_rank(view(), pipeline_rank, data_rank);
  }
  // Groups of this rank. Precondition: several ranks differ in the dimension; of tied_group(), that
  // ties_ranks() and the rank is one of the two.
  std::int32_t data_group() const { return pipeline().rank * tensor().ranks + tensor().rank; }
  std::int32_t pipeline_group() const { return data_group_count() + place_in_stage(); }
  std::int32_t tied_group() const { return data_group_count() + stage_ranks() + place_in_stage(); }
  // The group of those that this rank's value crosses to, of the ranks that compute together.
  std::int32_t inner_group(CutRanks among) const {
    const std::int32_t stage_groups = pipeline().is_alone() ? 0 : ties_ranks() ? 2 : 1;
    const std::int32_t first = data_group_count() + stage_groups * stage_ranks();
    const std::int32_t place = pipeline().rank * view().ranks + view().rank;
    if (among == CutRanks::kTensor) return first + place * tensor().contexts + tensor().context();
    const std::int32_t places = pipeline().ranks() * view().ranks;
    const std::int32_t contexts = first + (tensor().parts() == 1 ? 0 : places * tensor().contexts);
    if (among == CutRanks::kContext) return contexts + place * tensor().parts() + tensor().part();
    const std::int32_t sharers =
        contexts + (tensor().contexts == 1 ? 0 : places * tensor().parts());
    return sharers + (place * tensor().ranks + tensor().rank) / tensor().sharers;
  }
  const TensorView& tensor() const { return view().tensor; }
  // The range of the unit that a rank owns, where servers take turns in the present update; all of
  // it if the rank is alone.
  ElemRange shard(std::int32_t unit, std::int32_t rank) const;
  ElemRange own_shard(std::int32_t unit) const { return shard(unit, view().rank); }
  // The elements that this rank's home holds; empty: the rank has no such home.
  ElemRange home_range(StateKind kind, std::int32_t unit) const;
  // The elements that this rank updates.
  ElemRange updated_range(std::int32_t unit) const {
    return view().rotates ? own_shard(unit) : home_range(StateKind::kMaster, unit);
  }
  // Whether the homes of gradients that several ranks sum hold them rounded, in the gradients' own
  // dtype. Their sums are transient buffers on the device.
  bool rounds_gradients() const;
  // Whether the ranks of a node add their sums before those of other nodes.
  bool sums_within_nodes() const {
    return options_.node_ranks > 1 && options_.node_ranks < view().ranks;
  }
  // The number of micro-batches that this rank computes.
  std::int32_t own_microbatch_count() const {
    return schedule::own_microbatch_count(model_, options_);
  }
  // The version of the weights that the step's first passes read.
  std::int32_t weight_version() const { return versions_.of_weights; }
  // The version that the gradients of the present update make.
  std::int32_t gradient_version() const { return versions_.of_weights + versions_.update + 1; }
  // What is emitted from now on serves this update of the step.
  void set_update(std::int32_t update) { versions_.update = update; }
  std::int32_t update() const { return versions_.update; }
  // Delayed updates: the version that a micro-batch's passes read of the unit, from the step's
  // first.
  std::int32_t delayed_version(std::int32_t unit, std::int32_t microbatch) const;
  const Buffer& buffer(BufferId id) const { return schedule_.buffers[id]; }

  // Homes are persistent and have the same ids in every schedule of a run. kNoId: the run has none.
  BufferId home(StateKind kind, std::int32_t unit) const;
  Tier home_tier(StateKind kind, std::int32_t unit) const;
  // The buffer that an update writes: the home itself, or its shadow.
  BufferId made_home(StateKind kind, std::int32_t unit) const;
  // Delayed updates (weight_versions.hpp): home() is the place of the newest version of the
  // weights, and made_home() that of the next.
  void set_made_weights(std::int32_t unit, BufferId place);
  void settle_made_weights(std::int32_t unit);
  // A transient buffer of the same shape in the same tier.
  BufferId add_like(BufferId home, std::int32_t version);
  // Durable runs: the buffer on storage that a home is saved to; the home itself if it lies there.
  BufferId saved_home(StateKind kind, std::int32_t unit) const;
  Tier optimizer_tier(std::int32_t unit) const { return options_.placement.optimizer[index(unit)]; }
  // Where this rank's sums of groups of micro-batches wait, if it is one of several ranks.
  Tier partial_tier(std::int32_t unit) const {
    return options_.placement.partial_of(unit == tied_unit() ? 0 : unit);
  }
  BufferId host_tokens(std::int32_t microbatch) const { return data_.tokens[index(microbatch)]; }
  BufferId host_loss(std::int32_t microbatch) const { return data_.losses[index(microbatch)]; }
  // The partials of the present update's norm, of all units.
  Use norm_partials() const;
  BufferId clip_scalar() const { return shared_.clip_scalar; }
  // The part of norm_partials() that belongs to a range of a unit. Its bytes are 0 if no block
  // begins there.
  Use norm_partials_of(std::int32_t unit, ElemRange range) const;
  // The part of a run of the unit's norm blocks.
  Use norm_partials_of_blocks(std::int32_t unit, ElemRange blocks) const;

  BufferId add_transient(Buffer buffer);
  void set_ring(BufferId id, Ring ring) {
    schedule_.buffers[id].ring = static_cast<std::int32_t>(ring);
  }
  // A device window over a whole unit's elements.
  BufferId add_window(StateKind kind, std::int32_t unit, std::uint64_t elems, DType dtype,
                      std::int32_t microbatch, std::int32_t version);
  // A device buffer for a part of a unit's state that another rank sends, or for a sum of such
  // parts.
  BufferId add_received(StateKind kind, std::int32_t unit, ElemRange range, DType dtype,
                        std::int32_t microbatch, std::int32_t version);
  // An fp32 sum of the unit's gradient that lies next to its home for a while. first_microbatch: of
  // the sum; on storage it tells the sums of a unit apart.
  BufferId add_sum(Tier tier, std::int32_t unit, std::int32_t first_microbatch = -1);
  // A pinned piece of a unit's state.
  BufferId add_piece(Ring ring, StateKind kind, std::int32_t unit, ElemRange range, DType dtype,
                     std::int32_t version);
  // A pinned copy of a range of a home; of all of the home if it is per-tensor state.
  BufferId add_staged(Ring ring, BufferId home, ElemRange range, std::int32_t version);
  // Workspace for an update of the unit; kNoId: it needs none.
  BufferId add_update_workspace(Tier tier, std::int32_t unit);
  BufferId add_device(BufferRole role, Category category, std::uint64_t bytes, std::int32_t unit,
                      std::int32_t microbatch);
  // Workspace of a sum between segments. 0 bytes: kNoId.
  BufferId add_sum_scratch(std::uint64_t bytes, std::int32_t unit, std::int32_t microbatch);
  // A device buffer for the range `bytes` of a unit's saved values.
  BufferId add_saved(std::int32_t unit, std::int32_t microbatch, ElemRange bytes, SavedFor used_by);

  // Part `range` of a state buffer (window, home or piece) as a Use; per-tensor state is used
  // whole.
  Use part(BufferId buffer, ElemRange range) const;

  Instruction& emit(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch);
  // A transfer of `bytes` from one use to another.
  void move(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch, std::int32_t piece,
            Use from, Use to, std::uint64_t bytes);

  // The buffer lives at least until the instruction that was emitted last has retired.
  void hold(BufferId id) { held_.emplace_back(id, schedule_.instructions.size() - 1); }

  // The pieces of a range of a unit, in order.
  std::vector<ElemRange> pieces(ElemRange range) const;

  // Lists the segments of all units, if ranks compute micro-batches together.
  void declare_segments();
  // Lists the parts of all saved regions in the schedule. A step that recomputes some of them
  // needs this.
  void declare_saved_parts();
  // Inserts Releases, numbers the instructions, declares entry and exit residency.
  // kept: transient buffers that keep their memory to the end of the step.
  Schedule finish(const StepBorders& borders, std::span<const BufferId> kept = {});

 private:
  std::int32_t data_group_count() const {
    return view().is_alone() ? 0 : pipeline().ranks() * tensor().ranks;
  }
  // The ranks of a stage, and this rank's number among them.
  std::int32_t stage_ranks() const { return view().ranks * tensor().ranks; }
  std::int32_t place_in_stage() const { return view().rank * tensor().ranks + tensor().rank; }
  static std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }
  void add_homes();
  void add_unit_homes(std::int32_t unit, DType gradient_dtype);
  void join_world();
  BufferId add_persistent(Buffer buffer);
  BufferId add_home(StateKind kind, std::int32_t unit, Tier tier, DType dtype);
  void add_optimizer_home(StateKind kind, std::int32_t unit);
  void add_versions();
  void add_shadows();
  void declare_delays();
  void declare_residency(const StepBorders& borders);

  const StepModel& model_;
  const StepOptions& options_;
  struct Versions {
    std::int32_t of_weights = 0;  // of the step's first passes
    std::int32_t update = 0;      // the present one of the step
  };
  Versions versions_;
  Schedule schedule_;
  std::vector<std::array<BufferId, kStateKindCount>> homes_;
  std::vector<std::array<BufferId, kStateKindCount>> made_homes_;   // shadows, or the homes
  std::vector<std::array<BufferId, kStateKindCount>> saved_homes_;  // of a durable run
  struct Data {                                                     // by micro-batch
    std::vector<BufferId> tokens, losses;
  };
  Data data_;
  // Transient buffers that live at least through an instruction, by its place in the list.
  std::vector<std::pair<BufferId, std::size_t>> held_;
  struct Shared {
    BufferId norm_partials = kNoId;
    BufferId clip_scalar = kNoId;
    BufferId sum_scratch = kNoId;
  };
  Shared shared_;                                            // by all of the step
  std::vector<std::uint64_t> norm_blocks_of_earlier_units_;  // by unit, and of all units
};

}  // namespace sluice::schedule
