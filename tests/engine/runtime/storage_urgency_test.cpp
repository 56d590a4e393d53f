// Training tells the storage engine when the end of each transfer is waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/passing_engine.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::runtime {
namespace {

using testing::TrainingBench;

struct Submitted {
  offload::StorageOp op;
  std::uint64_t needed_by;
};

// Notes the submitted requests, in order.
class NotingEngine final : public testing::PassingEngine {
 public:
  NotingEngine(std::unique_ptr<offload::StorageEngine> inner, std::vector<Submitted>& notes)
      : PassingEngine(std::move(inner)), notes_(notes) {}
  void submit(const offload::StorageRequest& request, Callback done) override {
    {
      const std::lock_guard lock(mutex_);
      notes_.push_back({request.op, request.needed_by});
    }
    PassingEngine::submit(request, std::move(done));
  }

 private:
  std::mutex mutex_;
  std::vector<Submitted>& notes_;
};

std::vector<std::uint64_t> needs(const std::vector<Submitted>& notes, offload::StorageOp op) {
  std::vector<std::uint64_t> needed_by;
  for (const Submitted& note : notes) {
    if (note.op == op) needed_by.push_back(note.needed_by);
  }
  return needed_by;
}

TEST(StorageUrgency, EveryTransferSaysWhenItsEndIsWaitedFor) {
  const TrainingBench bench;
  std::vector<Submitted> notes;
  std::vector<std::size_t> ends;  // of steps, in notes
  train::TrainingOptions options;
  options.wrap_storage = [&](std::unique_ptr<offload::StorageEngine> inner) {
    return std::make_unique<NotingEngine>(std::move(inner), notes);
  };
  TrainingBench::run(bench.config("run", testing::tiny_stored_model(3)), options,
                     [&](const train::StepReport&) { ends.push_back(notes.size()); });
  ASSERT_GE(ends.size(), 2u);
  const std::vector<Submitted> step(notes.begin() + static_cast<std::ptrdiff_t>(ends[0]),
                                    notes.begin() + static_cast<std::ptrdiff_t>(ends[1]));
  for (const offload::StorageOp op : {offload::StorageOp::kRead, offload::StorageOp::kWrite}) {
    const std::vector<std::uint64_t> in_order = needs(step, op);
    ASSERT_GT(in_order.size(), 4u);
    EXPECT_GT(in_order.front(), 0u);
    EXPECT_LT(in_order.front(), in_order.back());
    // Its lane retires in order, so a later request of it is never needed sooner.
    EXPECT_TRUE(std::is_sorted(in_order.begin(), in_order.end()));
  }
}

}  // namespace
}  // namespace sluice::runtime
