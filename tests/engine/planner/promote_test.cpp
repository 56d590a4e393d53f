// Each kind's place as a sum of tiers: which units move up, how many, and the plans that result.
#include "engine/planner/search/promote.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/plan.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::testing {
namespace {

constexpr planner::Promotion kStateToPinned{&schedule::Placement::optimizer, Tier::kStorage,
                                            Tier::kPinned};
constexpr planner::Promotion kStateToDevice{&schedule::Placement::optimizer, Tier::kPinned,
                                            Tier::kDevice, &schedule::Placement::gradient};

schedule::Placement everywhere(Tier tier, std::size_t units) {
  const std::vector<Tier> tiers(units, tier);
  return {tiers, tiers, tiers};
}

std::size_t units_on(const std::vector<Tier>& tiers, Tier tier) {
  return static_cast<std::size_t>(std::count(tiers.begin(), tiers.end(), tier));
}

TEST(Promotion, LeavesKindsWithAGivenPlace) {
  config::Config config;
  EXPECT_EQ(planner::possible_promotions(config).size(), 5u);
  config.memory.place.optimizer = config::Config::Place::kStorage;
  const std::vector<planner::Promotion> promotions = planner::possible_promotions(config);
  EXPECT_EQ(promotions.size(), 3u);
  for (const planner::Promotion& promotion : promotions)
    EXPECT_NE(promotion.kind, &schedule::Placement::optimizer);
}

TEST(Promotion, TakesTheFirstUnitsOfItsTier) {
  schedule::Placement placement = everywhere(Tier::kStorage, 4);
  placement.optimizer[1] = Tier::kPinned;
  const auto units = planner::promotable_units(placement, kStateToPinned);
  EXPECT_EQ(units, (std::vector<std::size_t>{0, 2, 3}));
  const schedule::Placement moved = planner::promoted(placement, kStateToPinned, units, 2);
  EXPECT_EQ(moved.optimizer,
            (std::vector<Tier>{Tier::kPinned, Tier::kPinned, Tier::kPinned, Tier::kStorage}));
  EXPECT_EQ(moved.weight, placement.weight);
  EXPECT_EQ(moved.gradient, placement.gradient);
}

TEST(Promotion, BringsOptimizerStateToTheDeviceBehindWeightsAndWithGradients) {
  schedule::Placement placement = everywhere(Tier::kPinned, 4);
  EXPECT_TRUE(planner::promotable_units(placement, kStateToDevice).empty());
  placement.weight[1] = placement.weight[2] = placement.weight[3] = Tier::kDevice;
  placement.gradient[2] = Tier::kDevice;
  placement.gradient[3] = Tier::kStorage;
  const auto units = planner::promotable_units(placement, kStateToDevice);
  EXPECT_EQ(units, (std::vector<std::size_t>{1, 2}));
  const schedule::Placement moved = planner::promoted(placement, kStateToDevice, units, 2);
  EXPECT_EQ(moved.optimizer[1], Tier::kDevice);
  EXPECT_EQ(moved.gradient[1], Tier::kDevice);
  EXPECT_EQ(moved.gradient[3], Tier::kStorage);
  planner::Promotion alone = kStateToDevice;  // gradients with a given place stay
  alone.with = nullptr;
  EXPECT_EQ(planner::promotable_units(placement, alone), std::vector<std::size_t>{2});
}

class PromotedPlan : public ::testing::Test {
 protected:
  planner::Plan plan() const {
    const model::Model model(config::model_shape(config_));
    return std::get<planner::Plan>(
        planner::make_plan(config_, model, *kernels_, planner::HardwareProfile{}));
  }
  // Bytes that a unit's state takes of a tier where weights and gradients lie elsewhere.
  schedule::StepModel step_model() const {
    const model::Model model(config::model_shape(config_));
    return planner::make_step_model(model, config::batch_shape(config_),
                                    config::parameter_table(config_, model), *kernels_, *kernels_);
  }

  const std::unique_ptr<kernels::Kernels> kernels_ = kernels::make_host_kernels({1});
  config::Config config_ = config::parse_config(
      "", "test",
      std::vector<std::string>{"model.layers=12", "model.hidden=96", "model.heads=4",
                               "model.vocab=300", "train.seq=32", "train.micro_batch=1",
                               "train.accumulate=1", "memory.chunk=2MiB", "memory.device=12MiB",
                               "memory.pinned=64MiB", "memory.storage=64MiB", "data.paths=x"});
};

// The candidates know quarters; the plan fills pinned memory until the next unit does not fit.
TEST_F(PromotedPlan, FillsPinnedMemoryWithStateFromStorage) {
  config_.memory.place.weight = config_.memory.place.gradient = config::Config::Place::kPinned;
  const std::uint64_t roomy = plan().peak_bytes[static_cast<std::size_t>(Tier::kPinned)];
  const schedule::StepModel model = step_model();
  std::vector<std::size_t> counts;
  const std::uint64_t stride = samples_sweeps() ? 2 * kMiB : 512 * kKiB;
  for (std::uint64_t budget = roomy - 256 * kKiB; budget > roomy / 2; budget -= stride) {
    config_.memory.pinned_bytes = budget;
    const planner::Plan tight = plan();
    EXPECT_LE(tight.peak_bytes[static_cast<std::size_t>(Tier::kPinned)], budget);
    const schedule::Placement& placement = tight.options.placement;
    if (units_on(placement.weight, Tier::kStorage) > 0) break;
    counts.push_back(units_on(placement.optimizer, Tier::kStorage));
    const auto units = planner::promotable_units(placement, kStateToPinned);
    const std::uint64_t room = budget - tight.peak_bytes[static_cast<std::size_t>(Tier::kPinned)];
    EXPECT_EQ(planner::units_that_fit(model, tight.options, kStateToPinned, units, room), 0u)
        << budget;
  }
  if (samples_sweeps()) return;
  ASSERT_GE(counts.size(), 8u);
  // More places than quarters.
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  EXPECT_GT(counts.size(), 5u) << ::testing::PrintToString(counts);
}

TEST_F(PromotedPlan, UsesMoreDeviceMemoryForFewerUploads) {
  config_.memory.place.gradient = config_.memory.place.optimizer = config::Config::Place::kPinned;
  std::vector<std::uint64_t> uploads;
  double fastest_s = std::numeric_limits<double>::infinity();
  for (std::uint64_t mib = 12; mib <= 64; mib += samples_sweeps() ? 26 : 4) {
    config_.memory.device_bytes = mib * kMiB;
    const planner::Plan now = plan();
    uploads.push_back(now.step_bytes.upload);
    EXPECT_LE(now.simulation.total_s, 1.01 * fastest_s) << mib;
    EXPECT_LE(now.bound_s, now.simulation.total_s) << mib;
    fastest_s = std::min(fastest_s, now.simulation.total_s);
  }
  EXPECT_LT(uploads.back(), uploads.front());
}

TEST_F(PromotedPlan, SaysHowManyBytesOfEachKindLieWhere) {
  config_.memory.place.weight = config_.memory.place.gradient = config::Config::Place::kPinned;
  config_.memory.pinned_bytes =
      plan().peak_bytes[static_cast<std::size_t>(Tier::kPinned)] - 2 * kMiB;
  const planner::Plan spread = plan();
  std::uint64_t total = 0;
  for (std::size_t kind = 0; kind < kStateKindCount; ++kind) {
    for (const std::uint64_t bytes : spread.kind_bytes[kind]) total += bytes;
  }
  EXPECT_EQ(total, spread.state_bytes);
  const auto& master = spread.kind_bytes[static_cast<std::size_t>(StateKind::kMaster)];
  EXPECT_GT(master[static_cast<std::size_t>(Tier::kPinned)], 0u);
  EXPECT_GT(master[static_cast<std::size_t>(Tier::kStorage)], 0u);
}

// An update from storage may have pieces of its own, many of them in its ring. Where tensors are
// updated whole it has none, for it would hold as many units.
TEST_F(PromotedPlan, AnUpdateOfWholeTensorsHasNoPiecesOfItsOwn) {
  config_.memory.place.weight = config_.memory.place.gradient = config::Config::Place::kPinned;
  config_.memory.place.optimizer = config::Config::Place::kStorage;
  const planner::Plan streamed = plan();
  if (streamed.options.update_piece_elems > 0) {
    EXPECT_GT(streamed.options.update_lookahead, streamed.options.stream_lookahead);
  }
  config_.optimizer.name = kernels::OptimizerRule::kAdafactor;
  EXPECT_EQ(plan().options.update_piece_elems, 0u);
}

// make_plan calls this check on the schedules of every plan that it returns.
TEST_F(PromotedPlan, HasSchedulesThatBreakNoRule) {
  const planner::TierBytes budgets{config_.memory.device_bytes, config_.memory.pinned_bytes,
                                   config_.memory.storage_bytes};
  planner::Plan broken = plan();
  EXPECT_NO_THROW(planner::check_schedules(broken.schedules, broken.options, budgets));
  EXPECT_THROW(planner::check_schedules(broken.schedules, broken.options, {}), InternalError);
  for (schedule::Instruction& instruction :
       broken.schedules[schedule::StepKind::kEvaluation].instructions) {
    instruction.deps.clear();
  }
  const std::string text = message_of<InternalError>(
      [&] { planner::check_schedules(broken.schedules, broken.options, budgets); });
  EXPECT_TRUE(holds(text, "internal error: the schedule breaks a rule: instruction"));
  EXPECT_TRUE(holds(text, "please report"));
}

}  // namespace
}  // namespace sluice::testing
