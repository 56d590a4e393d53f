// A short training run with a failure of its Nth storage operation, or of a system call of one. The
// run ends with the bits of the healthy run, or with an error of exit status 3 that describes the
// failure. Never anything between.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "offload/storage_engine.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

class FaultSweep {
 public:
  // engine: memory.storage_engine. placement: the kinds of data on storage.
  explicit FaultSweep(const std::string& engine,
                      const Overrides& placement = places("storage", "storage", "storage"))
      : config_(bench_.config(
            "run", Overrides{"model.layers=1", "model.hidden=32", "model.heads=2", "train.seq=16",
                             "train.micro_batch=1", "train.accumulate=2", "train.steps=3",
                             "memory.storage_engine=" + engine} +
                       placement)) {
    const Outcome healthy = run({});
    if (!healthy.error.empty()) throw std::runtime_error(healthy.error);
    healthy_hash_ = healthy.weights_hash;
    operations_ = healthy.operations;
    calls_ = healthy.calls;
  }

  // Operations of the healthy run that the fault can meet: reads, writes, flushes and
  // preallocations, or system calls that move data.
  std::uint64_t operations(offload::StorageFault fault) const {
    return offload::is_fault_of_calls(fault) ? calls_ : operations_;
  }

  void expect_right_bits_or_error(const offload::FaultPlan& plan) const {
    SCOPED_TRACE("operation " + std::to_string(plan.at_operation) + " of " +
                 std::to_string(operations(plan.fault)) + ", fault " +
                 std::to_string(static_cast<int>(plan.fault)) + (plan.forever ? " forever" : ""));
    const Outcome outcome = run(plan);
    if (outcome.error.empty()) {
      EXPECT_TRUE(may_pass(plan));
      EXPECT_EQ(outcome.weights_hash, healthy_hash_);
    } else {
      EXPECT_EQ(outcome.exit_status, 3) << outcome.error;
      EXPECT_TRUE(may_fail(plan)) << outcome.error;
      EXPECT_GT(outcome.error.size(), 10u);
      if (plan.fault == offload::StorageFault::kFlippedWrite ||
          plan.fault == offload::StorageFault::kLostWrite) {
        EXPECT_NE(outcome.error.find("is corrupt"), std::string::npos) << outcome.error;
      }
    }
    // Scratch files are unlinked when they are made, so nothing is left after any fault.
    const std::filesystem::path storage = config_.log.dir + "/0001/storage";
    EXPECT_TRUE(!std::filesystem::exists(storage) || std::filesystem::is_empty(storage));
  }

 private:
  // Some faults are never passed over: the failed operation is not done.
  static bool may_pass(const offload::FaultPlan& plan) {
    switch (plan.fault) {
      case offload::StorageFault::kEio:
      case offload::StorageFault::kEnospc:
        return false;
      case offload::StorageFault::kCallEagain:
      case offload::StorageFault::kCallEintr:
      case offload::StorageFault::kFlippedRead:
        return !plan.forever;
      default:
        return true;  // resumed; or corrupts bytes that are not read, or that are the same
    }
  }
  // A single fault ends well if the operation is retried, resumed or read again.
  static bool may_fail(const offload::FaultPlan& plan) {
    switch (plan.fault) {
      case offload::StorageFault::kEio:
      case offload::StorageFault::kEnospc:
      case offload::StorageFault::kFlippedWrite:
      case offload::StorageFault::kLostWrite:
        return true;
      default:
        return plan.forever;
    }
  }

  struct Outcome {
    std::string error;  // empty: ended well
    int exit_status = 0;
    std::string weights_hash;
    std::uint64_t operations = 0;
    std::uint64_t calls = 0;
  };

  Outcome run(const offload::FaultPlan& plan) const {
    std::filesystem::remove_all(config_.log.dir);
    const offload::StorageEngine* engine = nullptr;
    Outcome outcome;
    train::TrainingOptions options;
    options.wrap_storage = [&](std::unique_ptr<offload::StorageEngine> inner) {
      auto faulty = offload::make_faulty_engine(std::move(inner), plan);
      engine = faulty.get();
      return faulty;
    };
    const train::EventSink sink = [&](const train::RunEvent& event) {
      if (event.at("event") != "done") return;
      outcome.weights_hash = event.at("weights_hash").get<std::string>();
      outcome.operations = offload::faulty_engine_operations(*engine);
      outcome.calls = offload::faulty_engine_calls(*engine);
    };
    try {
      train::train(config_, options, sink, [](const train::StepReport&) {});
    } catch (const Error& error) {
      outcome.error = error.what();
      outcome.exit_status = error.exit_status();
    }
    return outcome;
  }

  TrainingBench bench_;
  config::Config config_;
  std::string healthy_hash_;
  std::uint64_t operations_ = 0;
  std::uint64_t calls_ = 0;
};

inline constexpr std::array kEveryFault{offload::StorageFault::kEio,
                                        offload::StorageFault::kEnospc,
                                        offload::StorageFault::kShortTransfer,
                                        offload::StorageFault::kFlippedRead,
                                        offload::StorageFault::kFlippedWrite,
                                        offload::StorageFault::kLostWrite,
                                        offload::StorageFault::kCallEagain,
                                        offload::StorageFault::kCallEintr,
                                        offload::StorageFault::kCallShortByHalf,
                                        offload::StorageFault::kCallShortByOne,
                                        offload::StorageFault::kCallShortBy511};

}  // namespace sluice::testing
