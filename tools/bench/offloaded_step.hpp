// The optimizer update of a model with weights and optimizer state on storage and gradients in
// pinned memory. It is planned and run as in training; each of its parts can also run alone.
//
// It runs the drain schedule of optimizer.placement = "next_forward" through prepare, RunMemory,
// Program, Executor and the tagged space of storage, with no code of its own. Between the calls the
// state stays valid: its tags verify.
//
// The baselines move the same bytes of the same file. A file's position on a disk changes its speed
// by some percent, and that would look like a difference between two files' uses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/ledger.hpp"
#include "collectives/communicator.hpp"
#include "engine/planner/plan.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/model_runner.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {

struct OffloadedStepShape {
  std::int64_t layers = 2;  // of a Llama; its units have no padding if hidden is 4,096
  std::int64_t hidden = 4096;
  std::int64_t ffn = 5504;
};

class OffloadedStep {
 public:
  // states, moments: values of optimizer.states and optimizer.moments. threads: for the update; 0
  // means all cores. directory: receives the state file, which the caller removes. The constructor
  // writes the initial state. Throws InputError if the disk has no room, OutOfMemory, or IoError.
  OffloadedStep(const OffloadedStepShape& shape, const std::string& states,
                const std::string& moments, int threads, const std::string& directory);
  ~OffloadedStep();
  OffloadedStep(const OffloadedStep&) = delete;
  OffloadedStep& operator=(const OffloadedStep&) = delete;

  struct Cost {
    double seconds = 0;
    double cpu_seconds = 0;  // of the whole process
    double tag_seconds = 0;  // of the threads that hash: inside cpu_seconds
    std::uint64_t read_bytes = 0;
    std::uint64_t write_bytes = 0;  // both as the storage engine counted
  };
  // Runs the step. Throws as Executor::run does.
  Cost run();
  // Runs the same schedule on the same lanes, but each update leaves its piece unchanged.
  Cost run_without_update();
  // Makes the same kernel calls on the same memory in the same order, without transfers.
  Cost run_update_alone();

  // Measures the storage engine alone: it reads the file's blocks and writes them back unchanged.
  // load.bytes counts reads and writes. load.file and load.file_bytes are ignored.
  StorageRate run_transfers_alone(const StorageLoad& load, void* staging) {
    return measure_rewriting(memory_.storage().space(), load, staging);
  }
  // The file of the state. After writing other bytes to it call refill_state(); otherwise the next
  // step finds them corrupt.
  std::string state_file() { return memory_.storage().space().file_paths().front(); }
  // Overwrites the state on storage with small positive numbers.
  void refill_state();
  offload::StorageEngine& engine() { return *storage_; }

  // Hash of the weights as they are now (ModelState::weights_hash()).
  std::string weights_hash();
  std::uint64_t parameters() const { return plan().parameters; }
  // Elements including the padding of the units' layouts.
  std::uint64_t elems() const;
  // The bytes that one step reads and writes, as planned.
  std::uint64_t bytes_of_step() const;
  std::uint64_t state_bytes() const { return plan().need.storage_bytes; }
  // The elements that are read, updated and written at a time.
  std::uint64_t piece_elems() const;
  // The mean size of the step's transfers from and to storage, in whole pages.
  std::uint64_t transfer_bytes() const {
    constexpr std::uint64_t kPage = 4096;
    std::uint64_t transfers = 0;
    for (const schedule::Instruction& instruction : drain().instructions) {
      const bool moves = instruction.op == schedule::Op::kStorageRead ||
                         instruction.op == schedule::Op::kStorageWrite;
      transfers += moves ? 1 : 0;
    }
    if (transfers == 0) return kPage;
    return std::max(kPage, bytes_of_step() / transfers / kPage * kPage);
  }
  // Pinned memory that transfers pass through.
  std::uint64_t staging_bytes() const;

 private:
  // Runs operations, and can leave out the updates.
  class Runner;
  const planner::Plan& plan() const { return std::get<planner::Plan>(prepared_.result); }
  const schedule::Schedule& drain() const { return plan().schedules[schedule::StepKind::kDrain]; }
  void fill_gradients();
  void accept_clip();
  Cost run_program(bool updates);
  template <typename Work>
  Cost cost_of(Work work);

  train::Prepared prepared_;
  std::unique_ptr<collectives::Communicator> alone_;
  model::ParameterTable parameters_;
  std::unique_ptr<device::Device> device_;
  allocator::Ledger ledger_;
  std::unique_ptr<offload::StorageEngine> storage_;
  runtime::RunMemory memory_;
  runtime::Program program_;
  runtime::ModelRunner model_runner_;
  std::unique_ptr<Runner> runner_;
  runtime::Executor executor_;
  runtime::StateStore store_;
  std::int64_t steps_ = 0;
};

}  // namespace sluice::bench
