// A planned run made real: device, memory, storage, programs and executor, ready to take steps.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/ledger.hpp"
#include "collectives/communicator.hpp"
#include "engine/checkpoint/durable_recovery.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/config/config.hpp"
#include "engine/planner/plan.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/loss_scaler.hpp"
#include "engine/runtime/model_runner.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/train/backend.hpp"

namespace sluice::train {

using StorageWrapper =
    std::function<std::unique_ptr<offload::StorageEngine>(std::unique_ptr<offload::StorageEngine>)>;

struct StepOutcome {
  double loss = 0;  // mean over the step's tokens
  double grad_norm = 0;
  double seconds = 0;
  double stalled_fraction = 0;
  std::optional<runtime::Stalls> stalls;  // of a traced step: why, the drain before it left out
  double tag_seconds = 0;                 // of CPU, to hash what went to storage and came from it
  schedule::LinkBytes moved;              // as the device and the storage engine counted
  double loss_scale = 1;                  // of this step
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
  // empty.
  // run: names its storage files and seeds the tags of what lies there.
  Session(const config::Config& config, const model::Model& model, const planner::Plan& plan,
          const Backend& backend, const StorageWrapper& wrap_storage = {},
          const RunId& run = make_run_id());
  const model::ParameterTable& parameters() const { return parameters_; }

  // One optimizer step; `step` counts from 0. trace may be null. In fp16 the loss is scaled, and an
  // update whose gradients overflow is skipped to the bit. Where the plan has updates in the next
  // forward pass, this step's is pending afterwards. Where it has them speculative, a step that is
  // clipped is followed by its redo, and one whose gradients are not finite leaves the state as it
  // was, also where that ends the run.
  // Of a durable run, commits: not null, and the step also makes the state that it finds durable
  // while it computes, as `commits` says it. It drains before.
  StepOutcome train_step(std::int64_t step, double lr, const FillTokens& fill,
                         TraceRecorder* trace = nullptr,
                         const checkpoint::CheckpointManifest* commits = nullptr);
  // Makes the update that is pending, if one is, and returns the seconds that it took. Whatever
  // looks at the state between steps does so first.
  double drain();
  // Of a durable run: makes the state durable as it is now. Not twice without a step between.
  // Returns the bytes that this moved. Drains.
  schedule::LinkBytes commit(const checkpoint::CheckpointManifest& manifest);
  // Mean loss of one evaluation batch. Drains.
  double evaluate(const FillTokens& fill);
  // Drains.
  checkpoint::ModelState& state() {
    drain();
    return state_;
  }

  // The state of an earlier durable run; check_homes() has let it pass. Throws IoError.
  void load(const checkpoint::DurableFound& found);
  // Homes of state, wherever they are, in the schedule's order.
  static std::vector<const schedule::Buffer*> homes(const schedule::Schedule& schedule);
  // Of a durable run: its log of commits.
  std::string state_log() const { return files_ ? files_->log_path() : std::string(); }
  // fp16 training's; otherwise it stays at 1.
  runtime::LossScaler& loss_scaler() { return loss_scaler_; }
  collectives::Communicator& communicator() { return *communicator_; }
  runtime::ModelRunner& runner() { return runner_; }
  const runtime::Program& training_program() const { return training_.get(false); }
  // As charged to the ledger, and as the device and the storage engine measured themselves.
  planner::TierBytes peak_bytes() const;
  planner::TierBytes measured_peak_bytes() const;
  schedule::LinkBytes moved_bytes() const;
  offload::TagCounters tag_counters() { return memory_.storage().counters(); }
  // Driver, pinned and file-space allocations so far: constant once training has begun (law 9).
  std::uint64_t allocation_calls() const;
  // Stripes of each storage path in a round; fixed for the run.
  const std::vector<std::uint32_t>& storage_shares() { return memory_.storage().space().shares(); }
  std::string storage_engine_name() const { return storage_ ? storage_->name() : "none"; }

 private:
  std::int32_t* tokens_of(std::int64_t microbatch);
  double loss_of(std::int64_t microbatch);
  // A schedule ready to run; where state has twins, also with the twins in place of their homes.
  class Programs {
   public:
    Programs(const schedule::Schedule& schedule, runtime::RunMemory& memory, bool twins)
        : plain_(schedule, memory) {
      if (twins) flipped_.emplace(schedule, memory, true);
    }
    const runtime::Program& get(bool flipped) const { return flipped ? *flipped_ : plain_; }

   private:
    runtime::Program plain_;
    std::optional<runtime::Program> flipped_;
  };
  void settle(StepOutcome& outcome, const runtime::StepScalars& scalars);
  runtime::DurableState::Record record_of(const checkpoint::CheckpointManifest& manifest);
  // Of a durable run, the files that a commit relies on: data and log.
  std::vector<std::string> durable_files();
  void check_files_are_there();
  const runtime::Program& step_program(bool commits) const;
  runtime::RunStatistics pass(const runtime::Program& program,
                              const checkpoint::CheckpointManifest* commits,
                              TraceRecorder* trace = nullptr, std::uint32_t step = 0);
  const schedule::Buffer& host_buffer(schedule::BufferRole role, std::int64_t microbatch) const;

  const config::Config& config_;
  const planner::Plan& plan_;
  model::BatchShape batch_;
  model::ParameterTable parameters_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::unique_ptr<device::Device> device_;
  allocator::Ledger ledger_;
  std::unique_ptr<offload::StorageEngine> storage_;
  // Of a durable run. The log comes before the files that it names: whatever is left behind by a
  // run that was killed can be found.
  std::unique_ptr<checkpoint::UncommittedFiles> files_;
  allocator::Reservation log_charge_;
  std::unique_ptr<offload::StateLog> log_;
  std::vector<std::string> durable_ids_;  // file ids of durable_files()
  runtime::RunMemory memory_;
  std::unique_ptr<runtime::DurableState> durable_;
  Programs training_;
  runtime::Program first_;
  runtime::Program drain_;
  Programs redo_;
  Programs evaluation_;
  std::optional<runtime::Program> saving_;
  std::optional<runtime::Program> save_;
  runtime::LossScaler loss_scaler_;
  runtime::ModelRunner runner_;
  runtime::Executor executor_;
  runtime::StateStore store_;
  checkpoint::ModelState state_;
  std::optional<kernels::UpdateScalars>
      pending_;           // of the update that the next forward pass will make
  bool flipped_ = false;  // the state is in the twins of its homes
};

}  // namespace sluice::train
