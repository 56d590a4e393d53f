// A planned run made real: device, memory, storage, programs and executor, ready to take steps.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/ledger.hpp"
#include "collectives/communicator.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/config/config.hpp"
#include "engine/planner/plan.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/loss_scaler.hpp"
#include "engine/runtime/model_runner.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/train/backend.hpp"

namespace sluice {

using StorageWrapper =
    std::function<std::unique_ptr<StorageEngine>(std::unique_ptr<StorageEngine>)>;

struct StepOutcome {
  double loss = 0;  // mean over the step's tokens
  double grad_norm = 0;
  double seconds = 0;
  double stalled_fraction = 0;
  std::optional<Stalls> stalls;   // of a traced step: why, the drain before it left out
  double tag_seconds = 0;         // of CPU, to hash what went to storage and came from it
  LinkBytes moved;                // as the device and the storage engine counted
  double loss_scale = 1;          // of this step
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
  Session(const Config& config, const Model& model, const Plan& plan, const Backend& backend,
          const StorageWrapper& wrap_storage = {}, const RunId& run = make_run_id());
  const ParameterTable& parameters() const { return parameters_; }

  // One optimizer step; `step` counts from 0. trace may be null. In fp16 the loss is scaled, and an
  // update whose gradients overflow is skipped to the bit. Where the plan has updates in the next
  // forward pass, this step's is pending afterwards. Where it has them speculative, a step that is
  // clipped is followed by its redo, and one whose gradients are not finite leaves the state as it
  // was, also where that ends the run.
  // Of a durable run, commits: not null, and the step also makes the state that it finds durable
  // while it computes, as `commits` says it. It drains before.
  StepOutcome train_step(std::int64_t step, double lr, const FillTokens& fill,
                         TraceRecorder* trace = nullptr,
                         const CheckpointManifest* commits = nullptr);
  // Makes the update that is pending, if one is, and returns the seconds that it took. Whatever
  // looks at the state between steps does so first.
  double drain();
  // Of a durable run: makes the state durable as it is now. Not twice without a step between.
  // Returns the bytes that this moved. Drains.
  LinkBytes commit(const CheckpointManifest& manifest);
  // Mean loss of one evaluation batch. Drains.
  double evaluate(const FillTokens& fill);
  // Drains.
  ModelState& state() {
    drain();
    return state_;
  }

  // The state of an earlier durable run; check_homes() has let it pass. Throws IoError.
  void load(const DurableFound& found);
  // Homes of state, wherever they are, in the schedule's order.
  static std::vector<const Buffer*> homes(const Schedule& schedule);
  // Of a durable run: its log of commits.
  std::string state_log() const { return files_ ? files_->log_path() : std::string(); }
  // fp16 training's; otherwise it stays at 1.
  LossScaler& loss_scaler() { return loss_scaler_; }
  Communicator& communicator() { return *communicator_; }
  ModelRunner& runner() { return runner_; }
  const Program& training_program() const { return training_.get(false); }
  // As charged to the ledger, and as the device and the storage engine measured themselves.
  TierBytes peak_bytes() const;
  TierBytes measured_peak_bytes() const;
  LinkBytes moved_bytes() const;
  TagCounters tag_counters() { return memory_.storage().counters(); }
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
    Programs(const Schedule& schedule, RunMemory& memory, bool twins) : plain_(schedule, memory) {
      if (twins) flipped_.emplace(schedule, memory, true);
    }
    const Program& get(bool flipped) const { return flipped ? *flipped_ : plain_; }

   private:
    Program plain_;
    std::optional<Program> flipped_;
  };
  void settle(StepOutcome& outcome, const StepScalars& scalars);
  DurableState::Record record_of(const CheckpointManifest& manifest);
  const Program& step_program(bool commits) const;
  RunStatistics pass(const Program& program, const CheckpointManifest* commits,
                     TraceRecorder* trace = nullptr, std::uint32_t step = 0);
  const Buffer& host_buffer(BufferRole role, std::int64_t microbatch) const;

  const Config& config_;
  const Plan& plan_;
  BatchShape batch_;
  ParameterTable parameters_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Device> device_;
  Ledger ledger_;
  std::unique_ptr<StorageEngine> storage_;
  // Of a durable run. The log comes before the files that it names: whatever is left behind by a
  // run that was killed can be found.
  std::unique_ptr<UncommittedFiles> files_;
  Reservation log_charge_;
  std::unique_ptr<StateLog> log_;
  RunMemory memory_;
  std::unique_ptr<DurableState> durable_;
  Programs training_;
  Program first_;
  Program drain_;
  Programs redo_;
  Programs evaluation_;
  std::optional<Program> saving_;
  std::optional<Program> save_;
  LossScaler loss_scaler_;
  ModelRunner runner_;
  Executor executor_;
  StateStore store_;
  ModelState state_;
  std::optional<UpdateScalars> pending_;  // of the update that the next forward pass will make
  bool flipped_ = false;                  // the state is in the twins of its homes
};

}  // namespace sluice
