// Builds a step's instruction list: buffers, uses, and a Release after each transient's last use.
//
// The parts of a step live in files of their own (weight_stream, gradient_path, optimizer_path,
// generate); all append to one builder. Order of emission is the list order: it fixes lifetimes, so
// a transfer is emitted as early as its memory may be taken.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "engine/schedule/schedule.hpp"
#include "engine/schedule/step_model.hpp"

namespace sluice {

class StepBuilder {
 public:
  StepBuilder(const StepModel& model, const StepOptions& options);

  const StepModel& model() const { return model_; }
  const StepOptions& options() const { return options_; }
  std::int32_t unit_count() const { return static_cast<std::int32_t>(model_.units.size()); }
  // The number that stands for the gradient-only tied unit.
  std::int32_t tied_unit() const { return unit_count(); }
  std::uint64_t unit_elems(std::int32_t unit) const;
  const Buffer& buffer(BufferId id) const { return schedule_.buffers[id]; }

  // Homes: persistent, the same ids in every schedule of a run. kNoId where the run has none.
  BufferId home(StateKind kind, std::int32_t unit) const;
  Tier home_tier(StateKind kind, std::int32_t unit) const;
  // Of a durable run: where a home is saved. The home itself where it lies on storage.
  BufferId saved_home(StateKind kind, std::int32_t unit) const;
  Tier optimizer_tier(std::int32_t unit) const { return options_.placement.optimizer[index(unit)]; }
  BufferId host_tokens(std::int32_t microbatch) const { return tokens_[index(microbatch)]; }
  BufferId host_loss(std::int32_t microbatch) const { return losses_[index(microbatch)]; }
  BufferId norm_partials() const { return norm_partials_; }
  BufferId clip_scalar() const { return clip_scalar_; }
  // The part of norm_partials() that belongs to a range of a unit.
  Use norm_partials_of(std::int32_t unit, ElemRange range) const;

  BufferId add_transient(Buffer buffer);
  // A device window over a whole unit's elements.
  BufferId add_window(StateKind kind, std::int32_t unit, std::uint64_t elems, DType dtype,
                      std::int32_t microbatch, std::int32_t version);
  // A pinned or device piece of a unit's state.
  BufferId add_piece(Tier tier, StateKind kind, std::int32_t unit, ElemRange range, DType dtype,
                     std::int32_t version);
  // A pinned copy of a range of a home (of all of it where it is state of whole tensors).
  BufferId add_staged(BufferId home, ElemRange range, std::int32_t version);
  // What an update of the unit needs besides; kNoId: nothing.
  BufferId add_update_workspace(Tier tier, std::int32_t unit);
  BufferId add_device(BufferRole role, Category category, std::uint64_t bytes, std::int32_t unit,
                      std::int32_t microbatch);

  // Part `range` of a state buffer (window, home or piece) as a Use; all of per-tensor state.
  Use part(BufferId buffer, ElemRange range) const;

  Instruction& emit(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch);
  // A transfer of `bytes` from one use to another.
  void move(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch, std::int32_t piece,
            Use from, Use to, std::uint64_t bytes);

  // Elements of piece `index` of a unit of `elems` elements.
  std::vector<ElemRange> pieces(std::uint64_t elems) const;

  // Inserts Releases, numbers the instructions, declares entry and exit residency.
  Schedule finish(std::int32_t exit_version);

 private:
  static std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }
  void add_homes();
  BufferId add_persistent(Buffer buffer);
  BufferId add_home(StateKind kind, std::int32_t unit, Tier tier, DType dtype);
  void add_optimizer_home(StateKind kind, std::int32_t unit);
  void add_versions();
  void declare_residency(std::int32_t exit_version);

  const StepModel& model_;
  const StepOptions& options_;
  Schedule schedule_;
  std::vector<std::array<BufferId, kStateKindCount>> homes_;
  std::vector<std::array<BufferId, kStateKindCount>> saved_homes_;  // of a durable run
  std::vector<BufferId> tokens_;
  std::vector<BufferId> losses_;
  BufferId norm_partials_ = kNoId;
  BufferId clip_scalar_ = kNoId;
  std::vector<std::uint64_t> norm_blocks_of_earlier_units_;
};

// The parts. Each appends to `builder`.

// Decides when each unit's weights are fetched to the device and when they leave: next-use-farthest
// eviction over the known order of uses, within a number of slots.
class WeightStream {
 public:
  // uses[i]: the units whose weights the i-th compute instruction reads.
  WeightStream(StepBuilder& builder, std::vector<std::vector<std::int32_t>> uses);
  // Before the i-th compute instruction: emits the fetches that start here (for it and ahead of
  // it).
  void advance(std::size_t use_index);
  // The window that holds the unit's weights now.
  BufferId window(std::int32_t unit) const;

 private:
  bool resident_on_device(std::int32_t unit) const;
  std::uint64_t slots_of(std::int32_t unit) const;
  std::size_t next_use(std::int32_t unit, std::size_t from) const;
  bool make_room(std::int32_t unit, std::size_t use_index, std::size_t target_use);
  void fetch(std::int32_t unit);
  std::uint64_t just_enough_slots() const;
  std::vector<std::int32_t> ahead(std::size_t use_index) const;

  StepBuilder& builder_;
  std::vector<std::vector<std::int32_t>> uses_;
  std::vector<std::vector<std::size_t>> use_positions_;  // by unit, ascending
  std::vector<BufferId> windows_;                        // by unit; kNoId: not on the device
  std::uint64_t capacity_slots_ = 0;
  std::uint64_t used_slots_ = 0;
};

// What becomes of one unit's gradient of one micro-batch: into its home, summed in micro-batch
// order. `window`: the device window that BackwardWeight wrote, or the device home itself.
void emit_gradient_path(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch,
                        BufferId window);
// The window that BackwardWeight(unit, microbatch) writes.
BufferId gradient_target(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch);
// Adds the tied use's gradient into its tensor's, and takes that unit's norm.
void emit_tied_fold(StepBuilder& builder);

// Clip factor, then the update of every unit, streamed in pieces.
void emit_optimizer(StepBuilder& builder);

// What a step that saves adds (state_save.cpp): state as it is at the step's entry is written to
// storage while the step computes, then committed.
class StateSaver {
 public:
  // `builder`: of a durable run.
  explicit StateSaver(StepBuilder& builder);
  // Emits what should be under way when `done` of `all` parts of the step are.
  void advance(std::size_t done, std::size_t all);
  // Emits the rest and the Commit.
  void commit();

 private:
  struct Piece {
    BufferId home = kNoId;
    BufferId copy = kNoId;  // on storage
    ElemRange range;
  };
  struct Staged {
    BufferId buffer = kNoId;
    Piece piece;
  };
  void save(const Piece& piece);
  void write(const Piece& piece, BufferId from);

  StepBuilder& builder_;
  std::vector<Piece> pieces_;
  std::size_t saved_ = 0;      // of pieces_
  std::deque<Staged> staged_;  // brought down from the device, not written yet
};

}  // namespace sluice
