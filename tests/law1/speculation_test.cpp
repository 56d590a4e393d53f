// Law 1 for speculative updates: the bits of the plain order, whether no step's update is made once
// more, some are or all; and a state that nothing spoils that turns out not to be an update.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>

#include "base/error.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::train {
namespace {

using testing::Case;
using testing::expect_same_bits;
using testing::kLearning;
using testing::kPinned;
using testing::kResident;
using testing::kSpread;
using testing::kStored;
using testing::Overrides;
using testing::Part;
using testing::places;
using testing::PlannedSession;
using testing::run_in_parts;
using testing::small_gpt2;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

constexpr std::size_t kSteps = 12;

const Overrides kSpeculativeModel = small_gpt2(2, 12) + kLearning + Overrides{"train.threads=1"};
const Overrides kSpeculativeLlama =
    kSpeculativeModel + Overrides{"model.family=llama", "model.kv_heads=2", "model.ffn=160"};
const Overrides kAfter{"optimizer.placement=after_backward"};
const Overrides kSpeculative{"optimizer.placement=speculative"};

std::string clip_setting(double clip) {
  return "train.clip=" + std::to_string(clip);
}

double grad_norm_of(const TrainingRecord& run, std::size_t step) {
  return std::bit_cast<double>(run.norms.at(step));
}

std::vector<bool> redone(const TrainingRecord& run) {
  std::vector<bool> steps;
  for (const RunEvent& step : run.steps) steps.push_back(step.at("redone"));
  return steps;
}

// The steps that an update without clipping is wrong for; none that are skipped.
std::vector<bool> clipped(const TrainingRecord& plain, double clip) {
  std::vector<bool> steps;
  for (std::size_t step = 0; step < plain.steps.size(); ++step) {
    const bool skipped = plain.steps[step].value("overflow", false);
    steps.push_back(clip > 0 && !skipped && grad_norm_of(plain, step) > clip);
  }
  return steps;
}

// One of each place of the state, then other ways there.
constexpr std::size_t kFew = 4;
const std::vector<Case> kVariants{
    {"pinned", kPinned},
    {"io_uring", kStored + Overrides{"memory.storage_engine=io_uring"}},
    {"resident", kResident + Overrides{"train.eval_every=5", "checkpoint.every=4"}},
    {"mixed", kSpread + Overrides{"memory.chunk=4MiB", "memory.prefetch=0"}},
    {"posix", kStored + Overrides{"memory.storage_engine=posix", "train.order=unit"}},
    {"uneven", places("storage", "pinned", "pinned") + Overrides{"recompute.policy=unit"}},
    {"device_weights", places("device", "storage", "pinned") + Overrides{"train.threads=2"}}};

// The first variants against the plain order, which clips the steps that `clip` says. Returns how
// many these are.
std::size_t expect_all_speculative(const TrainingBench& bench, const Overrides& model, double clip,
                                   std::size_t variants = kVariants.size()) {
  const Overrides clips{clip_setting(clip)};
  const TrainingRecord reference =
      TrainingBench::run(bench.config("reference", model + kResident + kAfter + clips));
  const std::vector<bool> expected = clipped(reference, clip);
  const auto count = std::count(expected.begin(), expected.end(), true);
  for (std::size_t i = 0; i < variants; ++i) {
    const Case& variant = kVariants[i];
    SCOPED_TRACE(variant.name + ", " + clips.front());
    const config::Config config =
        bench.config(variant.name, model + variant.parts.front().overrides + kSpeculative + clips);
    if (!testing::runs_here(config)) continue;
    const TrainingRecord run = TrainingBench::run(config);
    expect_same_bits(run, reference);
    EXPECT_EQ(redone(run), expected);
    const RunEvent& told = run.done.at("speculation");
    EXPECT_EQ(told.at("steps"), kSteps);
    EXPECT_EQ(told.at("redone_steps"), count);
    EXPECT_EQ(told.at("redo_time_s").get<double>() > 0, count > 0);
  }
  return static_cast<std::size_t>(count);
}

// A threshold that some steps' norms are above; of four decimals, as clip_setting writes it.
double middle_norm(const TrainingRecord& run) {
  std::vector<double> norms;
  for (std::size_t step = 0; step < run.norms.size(); ++step) {
    if (std::isfinite(grad_norm_of(run, step))) norms.push_back(grad_norm_of(run, step));
  }
  std::sort(norms.begin(), norms.end());
  return std::round(norms[norms.size() / 2] * 1e4) * 1e-4;
}

TEST(Speculation, HasTheBitsOfThePlainOrderWhateverIsClipped) {
  const TrainingBench bench;
  for (const Overrides& model :
       {kSpeculativeModel, kSpeculativeLlama + Overrides{"train.accumulate=1"}}) {
    const std::size_t variants = model == kSpeculativeModel ? kVariants.size() : kFew;
    const TrainingRecord free =
        TrainingBench::run(bench.config("free", model + Overrides{"train.clip=0"}));
    EXPECT_EQ(expect_all_speculative(bench, model, 0, variants), 0u);
    EXPECT_EQ(expect_all_speculative(bench, model, 1e-3, variants), kSteps);
    const std::size_t some = expect_all_speculative(bench, model, middle_norm(free), variants);
    EXPECT_GT(some, 0u);
    EXPECT_LT(some, kSteps);
  }
}

// Split masters share bytes with the weight that the step has read, 8-bit moments and sums of whole
// tensors cannot be taken back by arithmetic, fp32 weights are their own master.
TEST(Speculation, HasThemForEveryWayOfKeepingState) {
  const TrainingBench bench;
  const std::vector<std::pair<std::string, Overrides>> states{
      {"split", {"optimizer.states=split"}},
      {"split_8bit", {"optimizer.states=split", "optimizer.moments=8bit"}},
      {"bf16", {"optimizer.moments=bf16"}},
      {"fp32", {"train.precision=fp32"}},
      {"adafactor", {"optimizer.name=adafactor", "optimizer.states=split"}},
      {"muon", {"optimizer.name=muon", "optimizer.moments=8bit"}}};
  for (const auto& [name, state] : states) {
    SCOPED_TRACE(name);
    const Overrides model = kSpeculativeModel + state;
    const TrainingRecord free =
        TrainingBench::run(bench.config("free", model + Overrides{"train.clip=0"}));
    const std::size_t some = expect_all_speculative(bench, model, middle_norm(free), kFew);
    EXPECT_GT(some, 0u);
    EXPECT_LT(some, kSteps);
  }
}

// Steps that overflow are skipped, among them some that would have been clipped and some that not.
TEST(Speculation, HasThemInFp16WhileTheScaleMoves) {
  const TrainingBench bench;
  const Overrides model =
      kSpeculativeModel +
      Overrides{"train.precision=fp16", "train.loss_scale=2097152", "train.loss_scale_window=3"};
  const TrainingRecord free =
      TrainingBench::run(bench.config("free", model + Overrides{"train.clip=0"}));
  for (const double clip : {0.0, middle_norm(free), 1e-3}) {
    const std::size_t redone_steps = expect_all_speculative(bench, model, clip, kFew);
    const TrainingRecord run = TrainingBench::run(
        bench.config("run", model + kPinned + kSpeculative + Overrides{clip_setting(clip)}));
    const auto skipped = static_cast<std::size_t>(
        std::count_if(run.steps.begin(), run.steps.end(),
                      [](const RunEvent& step) { return step.at("overflow").get<bool>(); }));
    EXPECT_GE(skipped, 2u);
    EXPECT_EQ(redone_steps > 0, clip > 0);
    EXPECT_EQ(skipped + redone_steps == kSteps, clip == 1e-3) << clip;
  }
}

TEST(Speculation, ResumesToTheSameBits) {
  const TrainingBench bench;
  const TrainingRecord reference =
      TrainingBench::run(bench.config("reference", kSpeculativeModel + kAfter));
  for (const std::int64_t stop : {1, 5, 6}) {
    SCOPED_TRACE(stop);
    const Overrides elsewhere = stop == 5 ? kAfter : kSpeculative;
    const Case parts("run" + std::to_string(stop),
                     std::vector<Part>{{kPinned + kSpeculative, stop}, {kStored + elsewhere}});
    expect_same_bits(run_in_parts(bench, kSpeculativeModel, parts), reference);
  }
}

// --- the plan, and the state after a failure

std::string saved_state(PlannedSession& run, const std::string& path) {
  run.session().state().save(path);
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A gradient that is not finite ends a bf16 run after all units have been updated beside the state.
TEST(Speculation, ARunThatDivergesKeepsTheStateOfItsLastStep) {
  const TrainingBench bench;
  for (const Overrides& where : {kPinned, kStored, kSpread, kResident}) {
    const config::Config config = bench.config("run", kSpeculativeModel + where + kSpeculative);
    std::filesystem::create_directories(bench.run_directory("run"));
    PlannedSession run(config);
    const auto fill = [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
      run.fill_tokens(microbatch, tokens, targets);
    };
    run.step(0);
    run.session().train_step(1, 1e38, fill);  // no weight survives such a rate
    const std::string path = bench.run_directory("run") + "/state";
    const std::string before = saved_state(run, path);
    EXPECT_NE(testing::message_of<Error>([&] { run.step(2); }).find("not finite"),
              std::string::npos);
    EXPECT_TRUE(saved_state(run, path) == before);
  }
}

// Redone steps too: their bytes are the step's and the redo's, and nothing is allocated for them.
TEST(Speculation, IsPlannedToTheByte) {
  const TrainingBench bench;
  for (const Overrides& where : {kPinned, kStored, kSpread, kResident}) {
    const auto session = [&](const Overrides& more) {
      return PlannedSession(bench.config("run", kSpeculativeModel + where + more));
    };
    PlannedSession plain = session(kAfter);
    PlannedSession run = session(kSpeculative + Overrides{"train.clip=0.001"});
    const planner::Plan& plan = run.plan();
    EXPECT_EQ(run.session().peak_bytes(), plan.peak_bytes);
    EXPECT_EQ(run.session().measured_peak_bytes(), plan.peak_bytes);
    EXPECT_EQ(plan.state_bytes, plain.plan().state_bytes);
    const std::uint64_t gradients = plan.state_bytes_of(StateKind::kGradient);
    EXPECT_GE(std::accumulate(plan.shadow_bytes.begin(), plan.shadow_bytes.end(), std::uint64_t{0}),
              plan.state_bytes - gradients);
    schedule::LinkBytes redone = plan.step_bytes;
    redone += plan.redo_bytes;
    EXPECT_EQ(plan.step_bytes, plain.plan().step_bytes);
    run.step(0);
    const std::uint64_t calls = run.session().allocation_calls();
    for (std::int64_t step = 1; step < 4; ++step) {
      const StepOutcome outcome = run.step(step);
      EXPECT_TRUE(outcome.redone);
      EXPECT_EQ(outcome.moved, redone);
      EXPECT_EQ(plain.step(step).moved, plan.step_bytes);
    }
    EXPECT_EQ(run.session().allocation_calls(), calls);
  }
}

}  // namespace
}  // namespace sluice::train
