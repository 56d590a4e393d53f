// The update of a model whose weights and optimizer state lie on storage and whose gradients wait
// in pinned memory: planned and run as training does it, and its parts each alone.
//
// It is the schedule that a run with optimizer.placement = "next_forward" drains with: prepare,
// RunMemory, Program, Executor and the tagged space of storage, nothing of its own. Between
// the calls the state stays a state: what is read verifies.
//
// What it is measured beside moves the same bytes of the same file: where on a disk a file lies is
// worth some percent of its speed, which does not change while the file is there and would pass
// for a difference between what two files are used for.
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
#include "engine/train/prepare.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {

struct OffloadedStepShape {
  std::int64_t layers = 2;  // of a Llama; its units have no padding where hidden is 4,096
  std::int64_t hidden = 4096;
  std::int64_t ffn = 5504;
};

class OffloadedStep {
 public:
  // states, moments: as the configuration's keys. threads: of the update; 0: all cores. directory:
  // where the state goes, in a file that is the caller's to remove. Fills the state.
  // InputError: no room. OutOfMemory, IoError.
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
  // The step. Throws what Executor::run does.
  Cost run();
  // The same schedule on the same lanes, where an update leaves its piece as it came.
  Cost run_without_update();
  // The same calls of the kernels on the same memory in the same order, and no transfer.
  Cost run_update_alone();

  // The storage engine alone: the file's blocks, read and written back as they came.
  // load.bytes: of reads and writes. load.file and load.file_bytes mean nothing.
  StorageRate run_transfers_alone(const StorageLoad& load, void* staging) {
    return measure_rewriting(memory_.storage().space(), load, staging);
  }
  // Who has written other bytes there calls refill_state(), or the next step finds them corrupt.
  std::string state_file() { return memory_.storage().space().file_paths().front(); }
  // Makes the state on storage another one, of small positive numbers.
  void refill_state();
  offload::StorageEngine& engine() { return *storage_; }

  // DESIGN section 9: of the weights as they are now.
  std::string weights_hash();
  std::uint64_t parameters() const { return plan().parameters; }
  // With what its units' layouts pad.
  std::uint64_t elems() const;
  // That one step reads and writes, as planned.
  std::uint64_t bytes_of_step() const;
  std::uint64_t state_bytes() const { return plan().need.storage_bytes; }
  // What is read, updated and written at a time.
  std::uint64_t piece_elems() const;
  // Of the step's transfers from and to storage, the mean; whole pages.
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
  // Lets the updates be left out.
  class Runner;
  const planner::Plan& plan() const { return std::get<planner::Plan>(prepared_.result); }
  const schedule::Schedule& drain() const { return plan().schedules[schedule::StepKind::kDrain]; }
  void fill_gradients();
  void accept_clip();
  Cost run_program(bool updates);
  template <typename Work>
  Cost cost_of(Work work);

  train::Prepared prepared_;
  model::ParameterTable parameters_;
  std::unique_ptr<collectives::Communicator> communicator_;
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
