// Generated steps: validate accepts them, and they compute the same as the plain step.
#include <gtest/gtest.h>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using testing::joined;

using testing::example_model;
using testing::example_options;
using testing::random_options;

// Everything on the device, no recomputation: the run that law 1 compares with.
Interpretation plain_values(const StepModel& model, std::int32_t microbatches) {
  StepOptions options = example_options(model, Tier::kDevice, Tier::kDevice, Tier::kDevice);
  options.microbatches = microbatches;
  return interpret(compile(model, options, StepKind::kTraining));
}

TEST(Compile, EveryPlacementIsAcceptedAndComputesThePlainStepInAnyTiming) {
  int timings = 0;
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const std::int32_t microbatches : {1, 2, 3}) {
        const StepModel model = example_model(2, tied, dtype);
        const Interpretation plain = plain_values(model, microbatches);
        ASSERT_EQ(joined(plain.errors), "");
        ASSERT_TRUE(plain.norm.has_value());
        ASSERT_EQ(plain.losses.size(), static_cast<std::size_t>(microbatches));
        for (std::uint64_t seed = 0; seed < 12; ++seed) {
          const StepOptions options = random_options(model, microbatches, seed);
          const Schedule schedule = compile(model, options, StepKind::kTraining);
          ASSERT_EQ(joined(validate(schedule)), "") << "seed " << seed;
          for (const InterpretOptions& timing : adverse_timings(seed, 2)) {
            const Interpretation values = interpret(schedule, timing);
            ASSERT_EQ(joined(values.errors), "") << "seed " << seed;
            ASSERT_TRUE(values.same_values(plain)) << "seed " << seed;
            ++timings;
          }
        }
      }
    }
  }
  EXPECT_GT(timings, 1000);
}

// Split masters, 8-bit moments, no moments at all, sums of whole tensors.
TEST(Compile, EveryOptimizersStateIsStreamedToThePlainStepsValues) {
  const std::vector<kernels::OptimizerOptions> optimizers = testing::example_optimizers();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE("optimizer " + std::to_string(i));
      const StepModel model = example_model(2, true, dtype, optimizers[i]);
      const Interpretation plain = plain_values(model, 2);
      ASSERT_EQ(joined(plain.errors), "");
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const Schedule schedule =
            compile(model, random_options(model, 2, seed), StepKind::kTraining);
        ASSERT_EQ(joined(validate(schedule)), "") << "seed " << seed;
        for (const InterpretOptions& timing : adverse_timings(seed, 1)) {
          const Interpretation values = interpret(schedule, timing);
          ASSERT_EQ(joined(values.errors), "") << "seed " << seed;
          ASSERT_TRUE(values.same_values(plain)) << "seed " << seed;
        }
      }
    }
  }
}

TEST(Compile, EvaluationReadsTheWeightsAndChangesNothing) {
  const StepModel model = example_model(2, true, DType::kBF16);
  const Interpretation plain =
      interpret(compile(model, example_options(model, Tier::kDevice, Tier::kDevice, Tier::kDevice),
                        StepKind::kEvaluation));
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Schedule schedule = compile(model, random_options(model, 2, seed), StepKind::kEvaluation);
    ASSERT_EQ(joined(validate(schedule)), "");
    const Interpretation values = interpret(schedule);
    ASSERT_EQ(joined(values.errors), "");
    EXPECT_TRUE(values.same_values(plain));
  }
}

}  // namespace
}  // namespace sluice::schedule
