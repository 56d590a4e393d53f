// All that a session holds once it is sealed: plan, memory, programs and their executor.
//
// The members stand in the order in which they need each other. A session that commits has in
// addition a log and a state in two copies, and a program that saves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/run_id.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/host/host_engine.hpp"
#include "engine/host/session_commits.hpp"
#include "engine/host/session_plan.hpp"
#include "engine/host/session_space.hpp"
#include "engine/host/state_runner.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/state_operations.hpp"
#include "engine/runtime/state_store.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::host {

class SealedSession {
 public:
  // commit_path: empty for a session that does not commit. Homes hold nothing yet.
  SealedSession(HostEngine& engine, const SessionSpace& space, StatePlace place,
                const std::string& commit_path);
  ~SealedSession();
  SealedSession(const SealedSession&) = delete;
  SealedSession& operator=(const SealedSession&) = delete;

  // A home in pinned memory.
  std::byte* address(std::int32_t unit, StateKind kind);
  bool rests_on_storage(std::int32_t unit, StateKind kind) const;
  // Moments become zero, and masters the weights.
  void fill_state(std::int32_t unit, std::uint64_t elems);
  // The groups' numbers have changed.
  void refresh_table(const SessionSpace& space);

  // Makes the update. trace: null, or the recorder of its spans. Returns its seconds.
  double update(TraceRecorder* trace, std::uint32_t step);
  bool commits() const { return memory_.commits != nullptr; }
  // Precondition: commits().
  void commit(const SessionSpace& space, std::uint64_t updates);
  // Call before anything but an update changes state: the last commit must stay whole. Copies the
  // state on storage if it is the committed one.
  void leave_committed_state();
  // A commit that was found in `directory`, which is locked meanwhile. Its homes are checked first;
  // then `begin` is called, and state changes. Returns the updates that it has.
  std::uint64_t load_commit(const SessionSpace& space, const std::string& directory,
                            const std::function<void()>& begin);

  const schedule::StepModel& model() const { return model_; }
  const SessionPlan& plan() const { return plan_; }
  const model::ParameterTable& table() const { return table_; }
  kernels::StateKernels& kernels() { return *kernels_; }
  runtime::StateOperations& operations() { return runner_.operations(); }
  StateRunner& runner() { return runner_; }
  runtime::StateStore& store() { return store_; }
  checkpoint::ModelState& files() { return files_; }
  offload::StorageCounters storage_counters() const;

 private:
  void load_home(const schedule::Buffer& home, checkpoint::SavedHomeReader& reader);
  std::vector<const schedule::Buffer*> homes() const;

  // All memory, with the files of the storage tier.
  struct Memory {
    Memory(HostEngine& engine, const SessionPlan& plan, const std::string& commit_path);
    const std::unique_ptr<offload::StorageEngine> storage;  // null: nothing rests there
    const RunId run;
    const std::unique_ptr<SessionCommits> commits;  // null: the session does not commit
    runtime::RunMemory homes;
    const std::unique_ptr<runtime::DurableState> durable;  // likewise
  };
  struct Programs {
    Programs(const SessionPlan& plan, runtime::RunMemory& homes);
    runtime::Program update;
    std::optional<runtime::Program> save;  // of a session that commits
  };

  HostEngine& engine_;
  const std::unique_ptr<kernels::StateKernels> kernels_;
  model::ParameterTable table_;
  const schedule::StepModel model_;
  const SessionPlan plan_;
  const std::unique_ptr<collectives::Communicator> alone_;
  Memory memory_;
  Programs programs_;
  StateRunner runner_;
  runtime::Executor executor_;
  runtime::StateStore store_;
  checkpoint::ModelState files_;
};

}  // namespace sluice::host
