// Training in fp16: law 1 with a loss scale that moves, steps that are skipped to the bit, and a
// run that ends because its gradients always overflow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "engine/config/shapes.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::size_t kFp16Steps = 20;

const Overrides kFp16Model = kChosenByHand + small_gpt2(2, 20) + kLearning +
                             Overrides{"train.precision=fp16", "train.threads=1"};
// So large a scale that the first gradients overflow, and so short a window that it does not come
// to rest: it is raised until it is too large again.
const Overrides kRestless{"train.loss_scale=2097152", "train.loss_scale_window=3"};

std::vector<std::int64_t> scales_of(const TrainingRecord& run) {
  return of_each_step<std::int64_t>(run, "loss_scale");
}

// Steps, counted from 1.
std::vector<std::int64_t> overflows_of(const TrainingRecord& run) {
  std::vector<std::int64_t> steps;
  for (const RunEvent& step : run.steps) {
    if (step.at("overflow")) steps.push_back(step.at("step"));
  }
  return steps;
}

std::string state_bytes(const std::string& run_directory, std::int64_t step) {
  std::string name = std::to_string(step);
  name.insert(0, 8 - name.size(), '0');
  return bytes_of_file(run_directory + "/checkpoints/step-" + name + "/state.safetensors");
}

TEST(Fp16, LowersTheLoss) {
  const TrainingBench bench;
  const TrainingRecord run = TrainingBench::run(
      bench.config("run", kFp16Model + Overrides{"train.steps=60", "train.accumulate=1"}));
  EXPECT_NEAR(run.loss(0), std::log(256.0), 0.3);
  EXPECT_LT(run.loss(59), 2.5);
  // This learning rate makes gradients above 1 for a while: the scale gives way and stays.
  EXPECT_LT(overflows_of(run).size(), 8u);
  EXPECT_GE(scales_of(run).back(), 512);
}

// Rounding apart, a step removes the scale again: norms are those of fp32 training.
TEST(Fp16, NormsAreThoseOfUnscaledGradients) {
  const TrainingBench bench;
  const Overrides few{"train.steps=3"};
  const TrainingRecord fp32 = TrainingBench::run(
      bench.config("fp32", kFp16Model + few + Overrides{"train.precision=fp32"}));
  for (const std::string scale : {"train.loss_scale=256", "train.loss_scale=65536"}) {
    const TrainingRecord fp16 =
        TrainingBench::run(bench.config("fp16", kFp16Model + few + Overrides{scale}));
    for (std::size_t step = 0; step < 3; ++step) {
      const double want = std::bit_cast<double>(fp32.norms[step]);
      EXPECT_NEAR(std::bit_cast<double>(fp16.norms[step]), want, 0.01 * want) << scale;
      EXPECT_NEAR(fp16.loss(step), fp32.loss(step), 0.01) << scale;
    }
  }
}

// The scale falls, is raised, and falls again.
void expect_restless(const TrainingRecord& run) {
  const std::vector<std::int64_t> skipped = overflows_of(run);
  const std::vector<std::int64_t> scales = scales_of(run);
  EXPECT_GE(skipped.size(), 3u);
  EXPECT_LE(skipped.size(), kFp16Steps / 2);
  EXPECT_EQ(skipped.front(), 1);
  const auto raised = std::adjacent_find(scales.begin(), scales.end(), std::less<>());
  ASSERT_NE(raised, scales.end());
  EXPECT_GT(skipped.back(), raised - scales.begin());
}

TEST(Fp16, HasTheSameBitsWhereverMemoryIs) {
  for (const std::string accumulate : {"train.accumulate=2", "train.accumulate=1"}) {
    expect_row({accumulate,
                kFp16Model + kRestless + kAfterBackward + Overrides{accumulate},
                kResident,
                {{"pinned", kPinned},
                 {"stored", kStored + kRecompute},
                 {"mixed", kSpread + kSmallChunks},
                 {"uneven", kUneven + Overrides{"train.threads=2"}},
                 {"next", kSpread + kNextForward},
                 {"next_stored", kStored + kNextForward + kUnitOrder},
                 {"next_resident", kResident + kNextForward + Overrides{"checkpoint.every=4"}}},
                StopBy::kStep,
                expect_restless});
  }
}

// In the middle of a window, right after an overflow, between two overflows in a row.
TEST(Fp16, ResumesToTheSameBits) {
  const TrainingBench bench;
  const Overrides model = kFp16Model + kRestless + kSpread + kNextForward;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", model));
  const std::vector<std::int64_t> skipped = overflows_of(reference);
  const std::set<std::int64_t> overflowed(skipped.begin(), skipped.end());
  std::set<std::int64_t> stops{1, skipped.back()};
  for (std::int64_t step = skipped.front(); step < 20; ++step) {
    // Two good steps of the three that make a window.
    if (!overflowed.contains(step - 1) && !overflowed.contains(step) &&
        overflowed.contains(step - 2)) {
      stops.insert(step);
    }
  }
  EXPECT_GE(stops.size(), 3u);
  for (const std::int64_t stop : stops) {
    SCOPED_TRACE(stop);
    const Case parts("run" + std::to_string(stop), std::vector<Part>{{{}, stop}, {}});
    expect_same_bits(run_in_parts(bench, model, parts), reference);
  }
}

// Weights, master and moments of the checkpoints before and after each step.
TEST(Fp16, ASkippedStepLeavesTheStateToTheBit) {
  const TrainingBench bench;
  const auto rule = [](const char* name, const char* moments) {
    return Overrides{std::string("optimizer.name=") + name,
                     std::string("optimizer.moments=") + moments};
  };
  for (const Overrides& where :
       sampled<Overrides>({kPinned, kStored, kSpread, kResident, kStored + rule("adamw", "8bit"),
                           kSpread + rule("lion", "bf16"), kStored + rule("adafactor", "fp32"),
                           kSpread + rule("muon", "8bit")})) {
    SCOPED_TRACE(::testing::PrintToString(where));
    const config::Config config = bench.config(
        "run", kFp16Model + kRestless + where + Overrides{"checkpoint.every=1", "train.steps=12"});
    std::filesystem::remove_all(config.log.dir);
    std::vector<std::string> states;
    const TrainingRecord run = TrainingBench::run(config, {}, [&](const StepReport& report) {
      if (report.step > 1) states.push_back(state_bytes(bench.first_run("run"), report.step - 1));
    });
    std::size_t skipped = 0;
    for (std::size_t step = 1; step < states.size(); ++step) {
      const bool overflow = run.steps.at(step).at("overflow");
      EXPECT_EQ(states[step] == states[step - 1], overflow) << "step " << step + 1;
      skipped += overflow ? 1 : 0;
    }
    EXPECT_GE(skipped, 2u);
    EXPECT_LT(skipped, 8u);
  }
}

// Skipped steps do not count in the bias correction: two runs that make the same updates, one of
// them after overflows, end in the same state.
TEST(Fp16, TheOptimizerCountsItsOwnSteps) {
  const TrainingBench bench;
  const auto session = [&](const std::string& scale) {
    return PlannedSession(
        bench.config("run", kFp16Model + kPinned + Overrides{"train.loss_scale=" + scale}));
  };
  PlannedSession late = session("1073741824");
  std::int64_t step = 0;
  while (late.step(step++).overflow) ASSERT_LT(step, 20);
  ASSERT_GT(step, 2);
  PlannedSession prompt = session(std::to_string(late.session().loss_scaler().state().scale));
  EXPECT_FALSE(prompt.step(0).overflow);
  int updates = 1;
  for (std::int64_t more = 0; more < 6; ++more) {
    const bool skipped = late.step(step + more).overflow;
    EXPECT_EQ(prompt.step(1 + more).overflow, skipped);
    updates += skipped ? 0 : 1;
  }
  EXPECT_GE(updates, 3);
  EXPECT_EQ(late.session().state().weights_hash(), prompt.session().state().weights_hash());
  const std::string files[] = {bench.run_directory("late"), bench.run_directory("prompt")};
  late.session().state().save(files[0]);
  prompt.session().state().save(files[1]);
  EXPECT_EQ(bytes_of_file(files[0]), bytes_of_file(files[1]));
}

TEST(Fp16, EndsWhereOverflowsDoNotStop) {
  const TrainingBench bench;
  const Overrides hopeless = kFp16Model + kSpread +
                             Overrides{"train.loss_scaling=static", "train.loss_scale=4294967296",
                                       "train.loss_scale_patience=3", "log.every=100"};
  const config::Config config = bench.config("run", hopeless);
  std::vector<RunEvent> steps;
  bool saved = false;
  const auto run = [&](const TrainingOptions& options) {
    steps.clear();
    return message_of<Error>([&] {
      train(
          config, options,
          [&](const RunEvent& event) {
            if (event.at("event") == "step") steps.push_back(event);
            saved = event.at("event") == "checkpoint";
          },
          [](const StepReport&) {});
    });
  };
  const std::string words = run({});
  ASSERT_EQ(steps.size(), 3u) << "an overflow is told whatever log.every is";
  EXPECT_TRUE(saved) << "last of all";
  const std::string tensor = steps.back().at("tensor");
  for (const std::string& fact : {std::string("3 steps in a row"), "'" + tensor + "'",
                                  std::string("loss scale 4294967296")}) {
    EXPECT_TRUE(holds(words, fact));
  }
  // The run saves the state that it began with, and a resumed run continues the count of overflows.
  const checkpoint::CheckpointFound found =
      checkpoint::find_checkpoint(bench.first_run("run") + "/checkpoints");
  EXPECT_EQ(found.manifest.step, 3);
  EXPECT_EQ(found.manifest.loss_scale, (runtime::LossScaleState{std::int64_t{1} << 32, 0, 3, 3}));
  PlannedSession fresh(config);
  EXPECT_EQ(found.manifest.weights_hash, fresh.session().state().weights_hash());
  EXPECT_TRUE(holds(run(until(0, bench.first_run("run"))), "4 steps in a row"));
}

TEST(Fp16, FilesHoldHalvesAndTheirMasters) {
  const TrainingBench bench;
  const config::Config config = bench.config("run", kFp16Model + Overrides{"train.steps=2"});
  TrainingBench::run(config);
  const checkpoint::SafetensorsReader weights(bench.first_run("run") + "/weights.safetensors");
  const checkpoint::SafetensorsReader state(
      checkpoint::find_checkpoint(bench.first_run("run") + "/checkpoints").directory +
      "/state.safetensors");
  ASSERT_FALSE(weights.tensors().empty());
  const auto values = [](const checkpoint::SafetensorsReader& reader, const std::string& name,
                         DType dtype) {
    const checkpoint::SafetensorsTensor* found = reader.find(name);
    EXPECT_NE(found, nullptr) << name;
    EXPECT_EQ(found->dtype, dtype) << name;
    std::vector<std::byte> bytes(found->bytes());
    reader.read(*found, 0, bytes);
    return bytes;
  };
  for (const checkpoint::SafetensorsTensor& tensor : weights.tensors()) {
    const std::vector<std::byte> halves = values(weights, tensor.name, DType::kF16);
    EXPECT_EQ(values(state, tensor.name, DType::kF16), halves) << tensor.name;
    const std::vector<std::byte> masters = values(state, "master." + tensor.name, DType::kF32);
    for (std::size_t i = 0; i < halves.size() / 2; ++i) {
      f16 half;
      float master = 0;
      std::memcpy(&half, halves.data() + 2 * i, 2);
      std::memcpy(&master, masters.data() + 4 * i, 4);
      ASSERT_EQ(half.bits, f16_from_float(master).bits) << tensor.name << " at " << i;
    }
  }
}

TEST(Fp16, ACheckpointWithoutItsScaleIsRefused) {
  const TrainingBench bench;
  const config::Config config = bench.config("run", kFp16Model + Overrides{"train.steps=1"});
  TrainingBench::run(config);
  checkpoint::CheckpointFound found =
      checkpoint::find_checkpoint(bench.first_run("run") + "/checkpoints");
  found.manifest.loss_scale.reset();
  checkpoint::save_manifest(found.manifest, found.directory + "/manifest.json");
  const std::string words =
      message_of<InputError>([&] { TrainingBench::run(config, until(0, bench.first_run("run"))); });
  EXPECT_TRUE(holds(words, "'loss_scale' is missing"));
}

// --- the name of the first tensor that is not finite ---------------------------------------------

// One schedule for all steps: it is changed.
const Overrides kSpoiled = kFp16Model + kAfterBackward;

// Runs the weight gradients of one unit itself, and spoils an element of one of its tensors.
class Spoiler {
 public:
  Spoiler(const config::Config& config, std::int32_t unit, std::size_t tensor, float value)
      : unit_(unit), run_(config, [this](planner::Plan& plan) {
          for (schedule::Instruction& instruction :
               plan.schedules[schedule::StepKind::kTraining].instructions) {
            const bool mine =
                instruction.op == schedule::Op::kBackwardWeight && instruction.unit == unit_;
            if (mine) instruction.op = schedule::Op::kExternal;
          }
        }) {
    const model::Model model(config::model_shape(config));
    const model::UnitLayout& layout = model.units()[static_cast<std::size_t>(unit)].layer->layout();
    const model::PlacedTensor& placed = layout.tensors().at(tensor);
    name_ = placed.spec.name;
    const DType dtype = config::batch_shape(config).dtype;
    const std::uint64_t elem = placed.first_elem + placed.spec.elems() - 1;
    run_.session().runner().attach_framework(
        [this, dtype, elem, value](const runtime::Program& program,
                                   const schedule::Instruction& instruction,
                                   const std::function<void(std::exception_ptr)>& signal) {
          runtime::ModelRunner& runner = run_.session().runner();
          schedule::Instruction pass = instruction;
          pass.op = schedule::Op::kBackwardWeight;
          const model::PassBuffers at = runner.pass_buffers(program, instruction);
          runner.run_pass(pass, at);
          const bool half = dtype == DType::kF16;
          const std::uint16_t bits =
              half ? f16_from_float(value).bits : bf16_from_float(value).bits;
          std::memcpy(static_cast<std::byte*>(at.grad_weights) + 2 * elem, &bits, 2);
          signal(nullptr);
        });
  }

  const std::string& tensor() const { return name_; }
  PlannedSession& run() { return run_; }

 private:
  std::int32_t unit_;
  PlannedSession run_;
  std::string name_;
};

TEST(FirstBadTensor, IsNamed) {
  const TrainingBench bench;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [unit, tensor] : {std::pair{0, 1}, std::pair{1, 0}, std::pair{2, 5}}) {
    for (const auto& where : {kResident, kStored}) {
      const Overrides model = kSpoiled + where;
      Spoiler half(bench.config("run", model), unit, static_cast<std::size_t>(tensor), infinity);
      const StepOutcome outcome = half.run().step(0);
      EXPECT_TRUE(outcome.overflow);
      EXPECT_EQ(outcome.overflowed_tensor, half.tensor());
      Spoiler brain(bench.config("run", model + Overrides{"train.precision=bf16"}), unit,
                    static_cast<std::size_t>(tensor), std::nanf(""));
      const std::string words = message_of<Error>([&] { brain.run().step(0); });
      EXPECT_TRUE(holds(words, "not finite, first that of '" + brain.tensor() + "'"));
    }
  }
}

// Each micro-batch's gradient is finite, and so is the fp32 sum; fp16 cannot hold it.
TEST(FirstBadTensor, MayOverflowOnlyAsASum) {
  const TrainingBench bench;
  Spoiler sums(bench.config("run", kSpoiled + kPinned), 1, 2, 40000.0f);
  const StepOutcome outcome = sums.run().step(0);
  EXPECT_TRUE(outcome.overflow);
  EXPECT_EQ(outcome.overflowed_tensor, sums.tensor());
  Spoiler alone(bench.config("run", kSpoiled + kPinned + Overrides{"train.accumulate=1"}), 1, 2,
                40000.0f);
  EXPECT_FALSE(alone.run().step(0).overflow);
}

}  // namespace
}  // namespace sluice::train
