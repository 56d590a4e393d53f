// Builds a step's instruction list: buffers, uses, and a Release after each transient's last use.
//
// The parts of a step live in files of their own (weight_stream, gradient_path, optimizer_path,
// generate); all append to one builder. Order of emission is the list order: it fixes lifetimes, so
// a transfer is emitted as early as its memory may be taken.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// What lies between a step and its neighbours. All state but gradients has version 0 at entry; an
// update that is pending at entry makes version 1 before a pass reads it.
struct StepBorders {
  bool pending_at_entry = false;  // gradients of version 1 and their clip factor wait to be applied
  bool pending_at_exit = false;   // this step's own wait
  std::int32_t exit_version = 0;  // of all state but gradients
};

class StepBuilder {
 public:
  // weight_version: of the weights that the passes read.
  StepBuilder(const StepModel& model, const StepOptions& options, std::int32_t weight_version);

  const StepModel& model() const { return model_; }
  const StepOptions& options() const { return options_; }
  std::int32_t unit_count() const { return static_cast<std::int32_t>(model_.units.size()); }
  // The number that stands for the gradient-only tied unit.
  std::int32_t tied_unit() const { return unit_count(); }
  std::uint64_t unit_elems(std::int32_t unit) const;
  std::int32_t weight_version() const { return weight_version_; }
  std::int32_t gradient_version() const { return weight_version_ + 1; }
  const Buffer& buffer(BufferId id) const { return schedule_.buffers[id]; }

  // Homes: persistent, the same ids in every schedule of a run. kNoId where the run has none.
  BufferId home(StateKind kind, std::int32_t unit) const;
  Tier home_tier(StateKind kind, std::int32_t unit) const;
  // Where an update leaves what it makes: the home itself, or its shadow.
  BufferId made_home(StateKind kind, std::int32_t unit) const;
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
  // A range of what a unit saves, on the device.
  BufferId add_saved(std::int32_t unit, std::int32_t microbatch, ElemRange bytes, SavedFor used_by);

  // Part `range` of a state buffer (window, home or piece) as a Use; all of per-tensor state.
  Use part(BufferId buffer, ElemRange range) const;

  Instruction& emit(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch);
  // A transfer of `bytes` from one use to another.
  void move(Op op, Lane lane, std::int32_t unit, std::int32_t microbatch, std::int32_t piece,
            Use from, Use to, std::uint64_t bytes);

  // Elements of piece `index` of a unit of `elems` elements.
  std::vector<ElemRange> pieces(std::uint64_t elems) const;

  // Inserts Releases, numbers the instructions, declares entry and exit residency.
  Schedule finish(const StepBorders& borders);

 private:
  static std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }
  void add_homes();
  BufferId add_persistent(Buffer buffer);
  BufferId add_home(StateKind kind, std::int32_t unit, Tier tier, DType dtype);
  void add_optimizer_home(StateKind kind, std::int32_t unit);
  void add_versions();
  void add_shadows();
  void declare_residency(const StepBorders& borders);

  const StepModel& model_;
  const StepOptions& options_;
  std::int32_t weight_version_;
  Schedule schedule_;
  std::vector<std::array<BufferId, kStateKindCount>> homes_;
  std::vector<std::array<BufferId, kStateKindCount>> made_homes_;   // shadows, or the homes
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
  // uses[i]: the units whose weights the i-th compute instruction reads. before_use: called before
  // whatever is emitted reads a unit's weights at home, not only for the first time; may be empty.
  WeightStream(StepBuilder& builder, std::vector<std::vector<std::int32_t>> uses,
               std::function<void(std::int32_t unit)> before_use);
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
  std::function<void(std::int32_t unit)> before_use_;
  std::vector<std::vector<std::size_t>> use_positions_;  // by unit, ascending
  std::vector<BufferId> windows_;                        // by unit; kNoId: not on the device
  std::uint64_t capacity_slots_ = 0;
  std::uint64_t used_slots_ = 0;
};

// What becomes of the units' gradients: into their homes, summed in micro-batch order.
class GradientPath {
 public:
  explicit GradientPath(StepBuilder& builder) : builder_(builder) {}
  // After BackwardWeight(unit, microbatch). `window`: the device window that it wrote, or the
  // device home itself. Micro-batches of a unit in ascending order.
  void emit(std::int32_t unit, std::int32_t microbatch, BufferId window);

 private:
  StepBuilder& builder_;
  // By unit: pieces of its sum that wait in pinned memory for its next micro-batch. With the order
  // "unit" that comes next, so a home on storage is written once.
  std::map<std::int32_t, std::vector<BufferId>> waiting_;
};
// The window that BackwardWeight(unit, microbatch) writes.
BufferId gradient_target(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch);
// Adds the tied use's gradient into its tensor's, and takes that unit's norm.
void emit_tied_fold(StepBuilder& builder);

// From all norm partials the norm, and the factor that updates multiply gradients by.
void emit_clip_factor(StepBuilder& builder);

// The updates of all units, one after another, streamed in pieces across their borders.
class UpdateStream {
 public:
  // order: every unit once. reads_ahead: pieces of units whose turn has not come may be read; not
  // where their gradients are still to be made. clips: the updates wait for the clip factor.
  UpdateStream(StepBuilder& builder, std::vector<std::int32_t> order, bool reads_ahead, bool clips);
  // Emits the updates up to that of `unit` that have not been emitted.
  void emit_through(std::int32_t unit);

 private:
  struct Piece {
    std::int32_t unit = 0;
    ElemRange range;
    // One per StateKind: the pinned buffer that the update works on (the home or a staged copy),
    // and the one that holds what it reads, which differs where the home has a shadow.
    std::array<BufferId, kStateKindCount> at{kNoId, kNoId, kNoId, kNoId, kNoId};
    std::array<BufferId, kStateKindCount> from{kNoId, kNoId, kNoId, kNoId, kNoId};
  };
  bool read_before(StateKind kind) const;
  std::uint64_t piece_elems() const;
  std::int32_t number(const Piece& piece) const;
  void emit_device_update(std::int32_t unit);
  void emit_pieces(std::size_t end);
  void bring_until(std::size_t end);
  void bring(Piece& piece);
  void update(const Piece& piece);
  void put_back(const Piece& piece);
  void add_common(Instruction& step, Tier tier);

  StepBuilder& builder_;
  std::vector<std::int32_t> order_;
  bool reads_ahead_;
  bool clips_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> pieces_through_;  // by place in order_: pieces up to the unit's last
  std::size_t units_done_ = 0;
  std::size_t brought_ = 0;  // pieces
  std::size_t updated_ = 0;
};

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

}  // namespace sluice::schedule
