// A model's compute as External instructions: an outside framework runs it and signals its end.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/engine/runtime/runtime_bench.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::runtime {
namespace {

using testing::Overrides;
using testing::PlannedSession;
using testing::TrainingBench;
using testing::operator+;

using Signal = std::function<void(std::exception_ptr)>;

bool is_pass(const schedule::Instruction& instruction) {
  using schedule::Op;
  static constexpr std::array kPasses{Op::kForward, Op::kRecompute, Op::kLoss, Op::kBackwardInput,
                                      Op::kBackwardWeight};
  return std::find(kPasses.begin(), kPasses.end(), instruction.op) != kPasses.end();
}

// A host framework: runs passes on a thread of its own, and knows which pass each External is.
class ForeignFramework {
 public:
  ForeignFramework() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

  // Makes every pass of the plan External.
  void take_over(planner::Plan& plan) {
    for (schedule::Instruction& instruction :
         plan.schedules[schedule::StepKind::kTraining].instructions) {
      if (!is_pass(instruction)) continue;
      passes_[instruction.id] = instruction.op;
      instruction.op = schedule::Op::kExternal;
    }
  }

  void attach(ModelRunner& runner) {
    runner.attach_framework([this, &runner](const Program& program,
                                            const schedule::Instruction& instruction,
                                            const Signal& signal) {
      schedule::Instruction pass = instruction;
      pass.op = passes_.at(instruction.id);
      const std::lock_guard lock(mutex_);
      work_.push_back({[&runner, pass, at = runner.pass_buffers(program, instruction)] {
                         runner.run_pass(pass, at);
                       },
                       signal});
      changed_.notify_one();
    });
  }

  std::size_t passes() const { return passes_.size(); }
  std::size_t signalled() const { return signalled_; }  // read between steps
  // The count of signals after which the next one is an error.
  void fail_after(std::size_t signals) { fail_after_ = signals; }

 private:
  struct Job {
    std::function<void()> run;
    Signal signal;
  };

  void work(const std::stop_token& stop) {
    while (true) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !work_.empty(); })) return;
      const Job job = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (signalled_ == fail_after_) {
        job.signal(std::make_exception_ptr(DeviceError("the framework lost its device")));
        continue;
      }
      job.run();
      ++signalled_;
      job.signal(nullptr);
    }
  }

  std::map<schedule::InstructionId, schedule::Op> passes_;
  std::size_t signalled_ = 0;
  std::size_t fail_after_ = ~std::size_t{0};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> work_;  // guarded by mutex_
  std::jthread thread_;
};

// One schedule for all steps: it is changed.
const Overrides kGpt2 =
    Overrides{"optimizer.placement=after_backward", "recompute.policy=unit", "memory.prefetch=1"} +
    Overrides{"model.layers=3",      "model.hidden=64",    "model.heads=4", "train.seq=32",
              "train.micro_batch=2", "train.accumulate=2", "train.clip=0.5"};
const Overrides kLlama = kGpt2 + Overrides{"model.family=llama", "model.kv_heads=2"};

TEST(ExternalCompute, HasTheSameBits) {
  const TrainingBench bench;
  for (const Overrides& model : {kGpt2, kLlama}) {
    const config::Config config =
        bench.config("run", model + testing::places("pinned", "pinned", "storage"));
    ForeignFramework framework;
    PlannedSession own(config);
    PlannedSession foreign(config, [&](planner::Plan& plan) { framework.take_over(plan); });
    EXPECT_EQ(schedule::validate(foreign.plan().schedules[schedule::StepKind::kTraining]),
              std::vector<std::string>{});
    framework.attach(foreign.session().runner());
    for (std::int64_t step = 0; step < 3; ++step) {
      const train::StepOutcome expected = own.step(step);
      const train::StepOutcome outcome = foreign.step(step);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(outcome.loss),
                std::bit_cast<std::uint64_t>(expected.loss));
      EXPECT_EQ(std::bit_cast<std::uint64_t>(outcome.grad_norm),
                std::bit_cast<std::uint64_t>(expected.grad_norm));
      EXPECT_EQ(outcome.moved, expected.moved);
    }
    EXPECT_EQ(foreign.session().state().weights_hash(), own.session().state().weights_hash());
    EXPECT_GT(framework.passes(), 30u);
    EXPECT_EQ(framework.signalled(), 3 * framework.passes());
  }
}

TEST(ExternalCompute, FailsWithTheErrorThatIsSignalled) {
  const TrainingBench bench;
  const config::Config config = bench.config("run", kGpt2);
  ForeignFramework framework;
  PlannedSession run(config, [&](planner::Plan& plan) { framework.take_over(plan); });
  framework.attach(run.session().runner());
  run.step(0);
  framework.fail_after(framework.passes() + 5);
  EXPECT_EQ(testing::message_of<DeviceError>([&] { run.step(1); }),
            "the framework lost its device");
}

TEST(ExternalCompute, WithoutAFrameworkIsRefused) {
  const TrainingBench bench;
  ForeignFramework framework;
  PlannedSession run(bench.config("run", kGpt2),
                     [&](planner::Plan& plan) { framework.take_over(plan); });
  EXPECT_THROW(run.step(0), InternalError);
}

// One External, then a download of its output.
schedule::Schedule one_external() {
  testing::ScheduleSketch sketch;
  const schedule::BufferId out =
      sketch.buffer(schedule::BufferRole::kActivation, Tier::kDevice, 4096);
  const schedule::BufferId host =
      sketch.buffer(schedule::BufferRole::kActivation, Tier::kPinned, 4096);
  sketch.emit(schedule::Op::kExternal, schedule::Lane::kCompute, {}, {testing::all(out)});
  sketch.emit(schedule::Op::kDownload, schedule::Lane::kD2H, {testing::all(out)},
              {testing::all(host)});
  return finished(sketch);
}

class SignalRunner final : public OperationRunner {
 public:
  explicit SignalRunner(std::function<void(const Signal&)> start) : start_(std::move(start)) {}
  void run_on_device(const Program&, const schedule::Instruction&, device::Stream&) override {}
  void run_on_host(const Program&, const schedule::Instruction&,
                   const kernels::HostUpdate&) override {}
  void run_external(const Program&, const schedule::Instruction&, const Signal& signal) override {
    start_(signal);
  }

 private:
  std::function<void(const Signal&)> start_;
};

// The message names the awaited signal; a signal that comes too late does no harm.
TEST(ExternalCompute, EndsAtTheDeadlineIfNeverSignalled) {
  Signal late;
  {
    RuntimeBench external(one_external());
    SignalRunner runner([&](const Signal& signal) { late = signal; });
    const std::string words =
        testing::message_of<TimeoutError>([&] { external.run_with(runner, 0.2); });
    EXPECT_TRUE(testing::holds(words, "External"));
  }
  late(nullptr);
}

// The signal may come before the executor waits for it, and from any thread.
TEST(ExternalCompute, MayBeSignalledAtAnyTime) {
  RuntimeBench external(one_external());
  SignalRunner at_once([](const Signal& signal) { signal(nullptr); });
  std::jthread other;
  SignalRunner elsewhere(
      [&](const Signal& signal) { other = std::jthread([done = signal] { done(nullptr); }); });
  for (int i = 0; i < 200; ++i) {
    external.run_with(at_once, 30);
    external.run_with(elsewhere, 30);
  }
}

}  // namespace
}  // namespace sluice::runtime
