// The update of a host program: one result whatever the tiers, pieces and timings, for units that
// differ in dtype and rule.
#include "engine/schedule/compile/host_update.hpp"

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/step_chain.hpp"

namespace sluice::schedule {
namespace {

kernels::OptimizerOptions rule(kernels::OptimizerRule which, DType weight, bool split = false) {
  kernels::OptimizerOptions options;
  options.rule = which;
  options.weight = weight;
  options.split_master = split;
  return options;
}

// Units of 1 to 9 blocks, each with another rule and dtype. None has passes.
StepModel mixed_model() {
  StepModel model;
  model.unit_optimizers = {
      rule(kernels::OptimizerRule::kAdamW, DType::kF32),
      rule(kernels::OptimizerRule::kAdamW, DType::kBF16, true),
      rule(kernels::OptimizerRule::kSgd, DType::kF32),
      rule(kernels::OptimizerRule::kLion, DType::kF16),
      rule(kernels::OptimizerRule::kAdamW, DType::kBF16),
  };
  for (std::size_t i = 0; i < model.unit_optimizers.size(); ++i) {
    UnitFootprint unit;
    unit.name = "unit";
    unit.elems = (1 + 2 * i) * kLawBlockElems;
    for (std::uint64_t block = 0; block <= 1 + 2 * i; ++block) {
      unit.norm_blocks_before.push_back(block);
    }
    model.units.push_back(unit);
  }
  return model;
}

StepOptions drawn_options(const StepModel& model, std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/host_update"));
  StepOptions options;
  options.piece_elems = (1 + random.bits(0) % 4) * kLawBlockElems;
  options.stream_lookahead = static_cast<std::int32_t>(random.bits(1) % 4);
  options.placement.weight.assign(model.units.size(), Tier::kPinned);
  options.placement.gradient.assign(model.units.size(), Tier::kPinned);
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    options.placement.optimizer.push_back(random.bits(2 + i) % 2 == 0 ? Tier::kPinned
                                                                      : Tier::kStorage);
  }
  return options;
}

TEST(HostUpdate, HasOneResultOnEveryTierAndTiming) {
  const StepModel model = mixed_model();
  StepOptions plain = drawn_options(model, 0);
  plain.placement.optimizer.assign(model.units.size(), Tier::kPinned);
  const Interpretation wanted = interpret(compile_host_update(model, plain));
  ASSERT_EQ(testing::joined(wanted.errors), "");
  ASSERT_TRUE(wanted.norm.has_value());
  // Weights of five units; a master of the three in 16 bits; one moment of two, two of three.
  EXPECT_EQ(wanted.exit.size(), 5u + 3u + 2u + 6u);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Schedule schedule = compile_host_update(model, drawn_options(model, seed));
    ASSERT_EQ(testing::joined(validate(schedule)), "");
    for (const InterpretOptions& timing : adverse_timings(seed, 1)) {
      const Interpretation found = interpret(schedule, timing);
      ASSERT_EQ(testing::joined(found.errors), "");
      ASSERT_TRUE(found.same_values(wanted));
    }
  }
}

// The update of a session that commits has the same result, and its save finds all of it: weights
// and optimizer state, wherever they rest, and no gradient.
TEST(HostUpdate, ASaveCommitsTheStateThatTheUpdateLeft) {
  const StepModel model = mixed_model();
  StepOptions plain = drawn_options(model, 0);
  const Interpretation wanted = interpret(compile_host_update(model, plain));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StepOptions options = drawn_options(model, seed);
    options.durable = true;
    const Schedule update = compile_host_update(model, options);
    const Schedule save = compile_host_save(model, options);
    ASSERT_EQ(testing::joined(validate(update)), "");
    ASSERT_EQ(testing::joined(validate(save)), "");
    const Interpretation updated = interpret(update);
    ASSERT_TRUE(updated.same_values(wanted));
    for (InterpretOptions timing : adverse_timings(seed, 1)) {
      timing.before = &updated.after;
      const Interpretation saved = interpret(save, timing);
      ASSERT_EQ(testing::joined(saved.errors), "");
      ASSERT_EQ(saved.committed, wanted.exit);
      ASSERT_EQ(saved.exit, wanted.exit);
    }
  }
}

TEST(HostUpdate, KeepsEachUnitsFormats) {
  const StepModel model = mixed_model();
  const Schedule schedule = compile_host_update(model, drawn_options(model, 3));
  std::size_t homes = 0;
  for (const Buffer& buffer : schedule.buffers) {
    if (!buffer.persistent || buffer.role != BufferRole::kState) continue;
    ++homes;
    const kernels::OptimizerOptions& of = model.optimizer_of(buffer.unit);
    if (buffer.kind == StateKind::kWeight || buffer.kind == StateKind::kGradient) {
      EXPECT_EQ(buffer.dtype, of.weight);
    } else {
      EXPECT_EQ(buffer.dtype, kernels::state_layout(of, buffer.kind).dtype);
    }
  }
  EXPECT_EQ(homes, 5u + 5u + 3u + 2u + 6u);
  EXPECT_EQ(schedule.peak_bytes[static_cast<std::size_t>(Tier::kDevice)], 0u);
}

}  // namespace
}  // namespace sluice::schedule
