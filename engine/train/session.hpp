// A planned run made real: device, memory, storage, programs and executor, ready to take steps.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "allocator/ledger.hpp"
#include "collectives/communicator.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/checkpoint/saved_parts.hpp"
#include "engine/config/config.hpp"
#include "engine/planner/plan.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/loss_scaler.hpp"
#include "engine/runtime/model_runner.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/train/plan/backend.hpp"
#include "engine/train/plan/verb_use.hpp"

namespace sluice::train {

using StorageWrapper =
    std::function<std::unique_ptr<offload::StorageEngine>(std::unique_ptr<offload::StorageEngine>)>;

// The other ranks of a run. Each group has all ranks of the world, and is used by one thread at a
// time, but `messages` by one that sends and one that receives. Null: the rank is alone.
struct RankLinks {
  collectives::Communicator* data = nullptr;      // the collectives of the schedules
  collectives::Communicator* control = nullptr;   // calls of the host between steps
  collectives::Communicator* messages = nullptr;  // between stages; null: there are none
  collectives::Communicator* inner = nullptr;     // in tensor groups; null: there are none
};

struct StepOutcome {
  double loss = 0;  // mean over the step's tokens
  double grad_norm = 0;
  double seconds = 0;
  double stalled_fraction = 0;
  std::optional<runtime::Stalls> stalls;  // of a traced step, by cause; without the drain before it
  double tag_seconds = 0;            // of CPU, to hash the bytes written to and read from storage
  schedule::LinkBytes moved;         // as the device and the storage engine counted
  collectives::ByteCounts messages;  // with other ranks, in the collectives of the schedules
  collectives::ByteCounts stage_messages;  // and between stages
  collectives::ByteCounts inner_messages;  // and in its tensor group
  double loss_scale = 1;                   // of this step
  bool overflow = false;          // a gradient was not finite: the update was skipped (fp16 only)
  std::string overflowed_tensor;  // the first such
  bool redone = false;            // a speculative update turned out wrong: it was made once more
  double redo_seconds = 0;        // of `seconds`
};

class Session {
 public:
  // Fills the host's token buffers of a micro-batch: tokens [rows], targets [rows].
  using FillTokens =
      std::function<void(std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets)>;

  // Takes all memory at once. config, model, plan and backend must outlive it. wrap_storage may be
  // empty. run: names its storage files and seeds their tags. links: must outlive it.
  Session(const config::Config& config, const model::Model& model, const planner::Plan& plan,
          const Backend& backend, const StorageWrapper& wrap_storage = {},
          const RunId& run = make_run_id(), const RankLinks& links = {});
  const model::ParameterTable& parameters() const { return parameters_; }
  // Makes a group of the GPUs of all ranks, which from now on carries the collectives of device
  // memory. All ranks call it, before the first step.
  using MakeGpuGroup = std::function<std::unique_ptr<collectives::Communicator>(
      device::Device& device, device::Stream& stream)>;
  void connect_gpus(const MakeGpuGroup& make);

  // One optimizer step; `step` counts from 0. trace may be null. In fp16 the loss is scaled, and an
  // update with gradients that overflow is skipped to the bit. If the plan has updates in the next
  // forward pass, this step's update is pending afterwards. If it has speculative updates, a redo
  // follows a step that is clipped, and a step with gradients that are not finite leaves the state
  // as it was, even if that ends the run.
  // commits, durable runs only: if not null, the step drains first, and also makes the state that
  // it finds durable while it computes. The manifest is stored with it.
  StepOutcome train_step(std::int64_t step, double lr, const FillTokens& fill,
                         TraceRecorder* trace = nullptr,
                         const checkpoint::CheckpointManifest* commits = nullptr);
  // The steps `step`, `step` + 1, ... that one pass makes, one for each learning rate: as many as
  // the plan has updates. Micro-batches count on from step to step. Time and bytes are shared
  // evenly among the outcomes.
  std::vector<StepOutcome> train_steps(std::int64_t step, std::span<const double> lrs,
                                       const FillTokens& fill, TraceRecorder* trace = nullptr,
                                       const checkpoint::CheckpointManifest* commits = nullptr);
  // Makes the pending update, if there is one, and returns the seconds that it took. Every method
  // that looks at the state between steps drains first.
  double drain();
  // Durable runs only: makes the state durable as it is now. Precondition: a step since the last
  // commit. Returns the bytes that this moved. Drains.
  schedule::LinkBytes commit(const checkpoint::CheckpointManifest& manifest);
  // Mean loss of one evaluation batch; each data-parallel rank has one of its own, and the ranks of
  // its pipeline have the same. Only the rank with the model's head knows the loss; the others
  // return 0. All ranks call it. Drains.
  double evaluate(const FillTokens& fill);
  // Drains.
  checkpoint::ModelState& state() {
    drain();
    return state_;
  }

  // The first rank of the world that has the model's head; the first ranks of its data-parallel
  // ranks' tensor groups follow it.
  std::size_t first_head_rank() const;

  // Loads the state of an earlier durable run, which SavedParts::check() has accepted. Throws
  // IoError.
  void load(const checkpoint::SavedParts& parts);
  // Homes of state in all tiers, in the schedule's order.
  static std::vector<const schedule::Buffer*> homes(const schedule::Schedule& schedule);
  // The path of a durable run's log of commits; empty for other runs.
  std::string state_log() const { return files_ ? files_->log_path() : std::string(); }
  // The scale stays at 1 unless training is in fp16.
  runtime::LossScaler& loss_scaler() { return loss_scaler_; }
  // The group of all ranks, for calls by the host.
  collectives::Communicator& communicator() { return ranks_.control; }
  runtime::ModelRunner& runner() { return runner_; }
  // As charged to the ledger, and as the device and the storage engine measured themselves.
  planner::TierBytes peak_bytes() const;
  planner::TierBytes measured_peak_bytes() const;
  // Counts the places that were handed out since the last call as in use by `verb`, which visited
  // state between steps. Steps count by themselves.
  void count_use(planner::Verb verb) { use_.note_visit(verb, memory_.take_handed_out()); }
  // As measured, of the memory that the run holds.
  const VerbUse::Peaks& peak_bytes_by_verb() const { return use_.peaks(); }
  // Pinned memory for an export, spare between steps.
  std::span<std::byte> export_piece();
  schedule::LinkBytes moved_bytes() const;
  // Exchanged with other ranks so far, in the collectives of the schedules.
  collectives::ByteCounts message_bytes() const {
    return gpu_group_ ? ranks_.data.bytes() + gpu_group_->bytes() : ranks_.data.bytes();
  }
  // The bytes between stages.
  collectives::ByteCounts stage_message_bytes() const { return ranks_.messages.bytes(); }
  // The bytes in the rank's tensor group.
  collectives::ByteCounts inner_message_bytes() const { return ranks_.inner.bytes(); }
  offload::TagCounters tag_counters() { return memory_.storage().counters(); }
  // Driver, pinned and file-space allocations so far: constant once training has begun (law 9).
  std::uint64_t allocation_calls() const;
  // Stripes of each storage path in a round; fixed for the run.
  const std::vector<std::uint32_t>& storage_shares() { return memory_.storage().space().shares(); }
  std::string storage_engine_name() const { return storage_ ? storage_->name() : "none"; }

 private:
  // The micro-batches of which this rank has host buffers of the role, in the numbering of the
  // step.
  std::vector<std::int64_t> own_microbatches(schedule::BufferRole role) const;
  std::vector<double> losses_of_microbatches();
  runtime::StepScalars scalars_of(std::int64_t step, std::span<const double> lrs);
  void note_updates(std::vector<StepOutcome>& outcomes);
  std::function<void()> wait_for_commits();
  model::BatchShape batch() const;
  std::optional<runtime::GpuMessages> gpu_messages(const Backend& backend,
                                                   const planner::Plan& plan);
  std::int32_t* tokens_of(std::int64_t microbatch);
  double loss_of(std::int64_t microbatch);
  // A schedule ready to run. With shadows there is a second program, in which each home and its
  // shadow have changed places.
  class Programs {
   public:
    Programs(const schedule::Schedule& schedule, runtime::RunMemory& memory, bool shadows)
        : plain_(schedule, memory) {
      if (shadows) flipped_.emplace(schedule, memory, true);
    }
    const runtime::Program& get(bool flipped) const { return flipped ? *flipped_ : plain_; }

   private:
    runtime::Program plain_;
    std::optional<runtime::Program> flipped_;
  };
  void settle(StepOutcome& outcome, const runtime::StepScalars& scalars);
  runtime::DurableState::Record record_of(const checkpoint::CheckpointManifest& manifest);
  // Precondition: the run has steps of this kind.
  const runtime::Program& program(schedule::StepKind kind) const;
  schedule::StepKind step_kind(bool commits) const;
  runtime::RunStatistics pass(schedule::StepKind kind,
                              const checkpoint::CheckpointManifest* commits,
                              TraceRecorder* trace = nullptr, std::uint32_t step = 0);
  const schedule::Buffer& host_buffer(schedule::BufferRole role, std::int64_t microbatch) const;

  const config::Config& config_;
  const planner::Plan& plan_;
  model::ParameterTable parameters_;
  struct Ranks {
    explicit Ranks(const RankLinks& links);
    std::unique_ptr<collectives::Communicator> alone;  // where there are no links
    collectives::Communicator& data;
    collectives::Communicator& control;
    collectives::Communicator& messages;
    collectives::Communicator& inner;
  };
  Ranks ranks_;
  std::unique_ptr<device::Device> device_;
  allocator::Ledger ledger_;
  std::unique_ptr<offload::StorageEngine> storage_;
  // Durable runs only. The log is created before the files that it names, so that the files of a
  // killed run can be found.
  std::unique_ptr<checkpoint::UncommittedFiles> files_;
  allocator::Reservation log_charge_;
  std::unique_ptr<offload::StateLog> log_;
  runtime::RunMemory memory_;
  std::unique_ptr<runtime::DurableState> durable_;
  std::array<std::optional<Programs>, schedule::kStepKindCount> programs_;  // the kinds it has
  runtime::LossScaler loss_scaler_;
  runtime::ModelRunner runner_;
  runtime::Executor executor_;
  std::unique_ptr<collectives::Communicator> gpu_group_;  // on a stream of the executor
  runtime::StateStore store_;
  checkpoint::ModelState state_;
  // From one step to the next.
  struct Deferred {
    std::optional<kernels::UpdateScalars> pending;  // the update that the next forward pass makes
    bool flipped = false;                           // the state is in the shadows of its homes
  };
  Deferred deferred_;
  VerbUse use_;
};

}  // namespace sluice::train
