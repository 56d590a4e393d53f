// Law 1 for speculative updates: the bits of the plain order, whether no step's update is made once
// more, some are or all; and a state that nothing spoils that turns out not to be an update.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::size_t kSteps = 12;

const Overrides kSpeculativeModel =
    small_gpt2(2, 12) + kLearning + kChosenByHand + Overrides{"train.threads=1"};

Overrides clipped_at(double clip) {
  return {"train.clip=" + std::to_string(clip)};
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
    {"pinned", kSpeculative + kPinned},
    {"io_uring", kSpeculative + kStored + Overrides{"memory.storage_engine=io_uring"} + carried(2)},
    {"resident", kSpeculative + kResident + Overrides{"train.eval_every=5", "checkpoint.every=4"}},
    {"mixed", kSpeculative + kSpread + kSmallChunks + carried(1)},
    {"carried", kSpeculative + kPinnedState + carried(3) +
                    Overrides{"train.eval_every=5", "checkpoint.every=4"}},
    {"posix", kSpeculative + kStored + kUnitOrder + Overrides{"memory.storage_engine=posix"}},
    {"stored_weights", kSpeculative + places("storage", "pinned", "pinned") + kRecompute},
    {"device_weights", kSpeculative + kUneven + Overrides{"train.threads=2"}}};

// The first variants against the plain order, which clips the steps that `clip` says. Returns how
// many these are.
std::size_t expect_all_speculative(const Overrides& model, double clip, std::size_t variants) {
  SCOPED_TRACE("clipped at " + std::to_string(clip));
  const auto first = kVariants.begin();
  std::vector<bool> expected;
  std::ptrdiff_t count = 0;
  expect_row({"Speculation", model + clipped_at(clip), kResident + kAfterBackward,
              std::vector<Case>(first, first + static_cast<std::ptrdiff_t>(variants)),
              StopBy::kStep,
              [&](const TrainingRecord& reference) {
                expected = clipped(reference, clip);
                count = std::count(expected.begin(), expected.end(), true);
              },
              [&](const Case&, const TrainingRecord& run) {
                EXPECT_EQ(redone(run), expected);
                const RunEvent& told = run.done.at("speculation");
                EXPECT_EQ(told.at("steps"), kSteps);
                EXPECT_EQ(told.at("redone_steps"), count);
                EXPECT_EQ(told.at("redo_time_s").get<double>() > 0, count > 0);
              }});
  return static_cast<std::size_t>(count);
}

// A threshold that some steps' norms are above; of four decimals, as clipped_at writes it.
double middle_norm(const Overrides& model) {
  const TrainingBench bench;
  const TrainingRecord run = TrainingBench::run(bench.config("free", model + clipped_at(0)));
  std::vector<double> norms;
  for (std::size_t step = 0; step < run.norms.size(); ++step) {
    if (std::isfinite(grad_norm_of(run, step))) norms.push_back(grad_norm_of(run, step));
  }
  std::sort(norms.begin(), norms.end());
  return std::round(norms[norms.size() / 2] * 1e4) * 1e-4;
}

// Some steps are clipped, and some are not.
void expect_some_redone(const Overrides& model, std::size_t variants) {
  const std::size_t some = expect_all_speculative(model, middle_norm(model), variants);
  EXPECT_GT(some, 0u);
  EXPECT_LT(some, kSteps);
}

TEST(Speculation, HasTheBitsOfThePlainOrderWhateverIsClipped) {
  const Overrides llama = kSpeculativeModel + kLlama + Overrides{"train.accumulate=1"};
  for (const auto& [model, variants] :
       {std::pair(kSpeculativeModel, kVariants.size()), std::pair(llama, kFew)}) {
    EXPECT_EQ(expect_all_speculative(model, 0, variants), 0u);
    EXPECT_EQ(expect_all_speculative(model, 1e-3, variants), kSteps);
    expect_some_redone(model, variants);
  }
}

// Split masters share bytes with the weight that the step has read, 8-bit moments and sums of whole
// tensors cannot be taken back by arithmetic, fp32 weights are their own master.
TEST(Speculation, HasThemForEveryWayOfKeepingState) {
  const std::vector<std::pair<std::string, Overrides>> states{
      {"split", {"optimizer.states=split"}},
      {"split_8bit", {"optimizer.states=split", "optimizer.moments=8bit"}},
      {"bf16", {"optimizer.moments=bf16"}},
      {"fp32", {"train.precision=fp32"}},
      {"adafactor", {"optimizer.name=adafactor", "optimizer.states=split"}},
      {"muon", {"optimizer.name=muon", "optimizer.moments=8bit"}}};
  for (const auto& [name, state] : sampled(states)) {
    SCOPED_TRACE(name);
    expect_some_redone(kSpeculativeModel + state, kFew);
  }
}

// Steps that overflow are skipped, among them some that would have been clipped and some that not.
TEST(Speculation, HasThemInFp16WhileTheScaleMoves) {
  const TrainingBench bench;
  const Overrides model =
      kSpeculativeModel +
      Overrides{"train.precision=fp16", "train.loss_scale=2097152", "train.loss_scale_window=3"};
  for (const double clip : {0.0, middle_norm(model), 1e-3}) {
    const std::size_t redone_steps = expect_all_speculative(model, clip, kFew);
    const TrainingRecord run =
        TrainingBench::run(bench.config("run", model + kPinned + kSpeculative + clipped_at(clip)));
    const std::vector<bool> overflows = of_each_step<bool>(run, "overflow");
    const auto skipped =
        static_cast<std::size_t>(std::count(overflows.begin(), overflows.end(), true));
    EXPECT_GE(skipped, 2u);
    EXPECT_EQ(redone_steps > 0, clip > 0);
    EXPECT_EQ(skipped + redone_steps == kSteps, clip == 1e-3) << clip;
  }
}

TEST(Speculation, ResumesToTheSameBits) {
  const Overrides begin = kPinned + kSpeculative;
  expect_row({"Resume",
              kSpeculativeModel,
              kAfterBackward,
              {{"at_1", std::vector<Part>{{begin, 1}, {kStored + kSpeculative}}},
               {"at_5", std::vector<Part>{{begin, 5}, {kStored + kAfterBackward}}},
               {"carried", std::vector<Part>{{begin + carried(2), 5}, {begin + carried(1)}}},
               {"at_6", std::vector<Part>{{begin, 6}, {kStored + kSpeculative}}}}});
}

// --- the state after a failure

std::string saved_state(PlannedSession& run, const std::string& path) {
  run.session().state().save(path);
  return bytes_of_file(path);
}

// A gradient that is not finite ends a bf16 run after all units have been updated next to the
// state.
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
    EXPECT_TRUE(holds(message_of<Error>([&] { run.step(2); }), "not finite"));
    EXPECT_TRUE(saved_state(run, path) == before);
  }
}

}  // namespace
}  // namespace sluice::train
