// Servers that make several updates in one schedule: validate accepts their lists, they compute the
// same terms under all timings, they send the bytes of the formulas, and no damaged list that is
// accepted computes other terms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/parallel/server_order.hpp"
#include "engine/parallel/stages.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/engine/schedule/pipeline/pipeline_matrix.hpp"
#include "tests/support/mutation_campaign.hpp"
#include "tests/support/rank_world.hpp"

namespace sluice::testing {
namespace {

struct ServedRun {
  bool rotates = false;
  std::int32_t ranks = 2;
  std::int32_t updates = 6;
  std::int32_t rounds = 1;  // micro-batches of each rank in an update, if the server rotates
  Tier gradient = Tier::kDevice, optimizer = Tier::kDevice;
  std::uint64_t seed = 1;
};

schedule::StepModel served_model(const ServedRun& at, std::int32_t rank) {
  schedule::StepModel model = example_model(3, false, DType::kBF16);
  model.view = parallel::make_server_view(model, rank, at.ranks);
  model.view.rotates = at.rotates;
  if (!at.rotates) model.view.arrivals = parallel::draw_arrivals(at.ranks, at.updates, at.seed);
  model.pipeline =
      parallel::make_stage_view(parallel::make_server_order(model.view, at.updates, at.rounds),
                                {{0, static_cast<std::int32_t>(model.units.size())}}, 0);
  return model;
}

schedule::Schedule served_world(const ServedRun& at) {
  std::vector<schedule::Schedule> lists;
  for (std::int32_t rank = 0; rank < at.ranks; ++rank) {
    const schedule::StepModel model = served_model(at, rank);
    schedule::StepOptions options = resident_options(model, at.rotates ? at.ranks * at.rounds : 1);
    options.placement = placed(model.units.size(), Tier::kDevice, at.gradient, at.optimizer);
    options.update = schedule::UpdatePlacement::kInBackward;
    lists.push_back(schedule::compile(model, options, schedule::StepKind::kTraining));
  }
  return schedule::merge(lists);
}

std::vector<ServedRun> served_runs() {
  std::vector<ServedRun> runs;
  for (const std::int32_t ranks : {2, 3, 4}) {
    for (const Tier gradient : kTiers) {
      for (const Tier optimizer : kTiers) {
        runs.push_back({false, ranks, 7, 1, gradient, optimizer, 5});
        if (optimizer == Tier::kStorage) continue;
        runs.push_back({true, ranks, 2 * ranks, ranks == 2 ? 2 : 1, gradient, optimizer});
      }
    }
    for (std::uint64_t seed = 0; seed < 6; ++seed) runs.push_back({.ranks = ranks, .seed = seed});
  }
  return runs;
}

TEST(ServerModes, ComputeTheSameTermsUnderAllTimings) {
  std::map<std::tuple<bool, std::int32_t, std::int32_t, std::uint64_t>, schedule::Interpretation>
      of_mode;
  for (const ServedRun& at : served_runs()) {
    SCOPED_TRACE(::testing::Message()
                 << (at.rotates ? "rotating" : "asynchronous") << ", ranks " << at.ranks
                 << ", gradient " << static_cast<int>(at.gradient) << ", optimizer "
                 << static_cast<int>(at.optimizer) << ", seed " << at.seed);
    const schedule::Schedule world = served_world(at);
    ASSERT_EQ(joined(schedule::validate(world)), "");
    const schedule::Interpretation values = schedule::interpret(world);
    ASSERT_EQ(joined(values.errors), "");
    EXPECT_EQ(values.losses.size(),
              static_cast<std::size_t>(world.delayed.updates * world.delayed.microbatches));
    EXPECT_TRUE(harmless(world, values, 3, at.seed));
    // The tiers make no difference.
    const auto [first, fresh] =
        of_mode.try_emplace({at.rotates, at.ranks, at.updates, at.seed}, values);
    EXPECT_TRUE(fresh || values.same_values(first->second));
  }
}

TEST(ServerModes, APassMayNotReadAnotherVersionThanIsDeclared) {
  schedule::Schedule world = served_world({.ranks = 3});
  for (auto& versions : world.delayed.versions) {
    for (std::int32_t& version : versions) version = std::min(version + 1, 5);
  }
  EXPECT_NE(joined(schedule::validate(world)).find(" reads version "), std::string::npos);
}

TEST(ServerModes, EveryRankArrivesEquallyOftenInAnOrderOfTheSeed) {
  std::set<std::vector<std::int32_t>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::int32_t> arrivals = parallel::draw_arrivals(4, 18, seed);
    orders.insert(arrivals);
    std::sort(arrivals.begin(), arrivals.end());
    EXPECT_EQ(arrivals,
              (std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
  }
  EXPECT_EQ(orders.size(), 20u);
}

std::uint64_t sent_bytes(const schedule::Schedule& world) {
  std::uint64_t sent = 0;
  for (std::int32_t rank = 0; rank < world.ranks; ++rank) {
    sent += message_bytes(world, rank)[static_cast<std::size_t>(schedule::Lane::kComm)].sent;
  }
  return sent;
}

std::uint64_t parameters_of(const schedule::StepModel& model) {
  std::uint64_t elems = 0;
  for (const schedule::UnitFootprint& unit : model.units) elems += unit.elems;
  return elems;
}

// The formulas of docs/design/ranks.md, with 16-bit weights and gradients.
TEST(ServerModes, SendTheBytesOfTheFormulas) {
  for (const ServedRun& at : served_runs()) {
    const schedule::StepModel model = served_model(at, 0);
    const schedule::Schedule world = served_world(at);
    const std::uint64_t elems = parameters_of(model);
    const auto others = static_cast<std::uint64_t>(at.ranks - 1);
    const auto updates = static_cast<std::uint64_t>(at.updates);
    const std::uint64_t norms = updates * others * elems / 4096 * 8;
    if (at.rotates) {
      std::uint64_t state = 0;
      for (const schedule::Buffer& buffer : world.buffers) {
        const bool moves = buffer.persistent && buffer.rank == 0 &&
                           buffer.role == schedule::BufferRole::kState &&
                           buffer.kind != StateKind::kWeight && buffer.kind != StateKind::kGradient;
        if (moves) state += buffer.bytes;
      }
      const auto rounds = static_cast<std::uint64_t>(at.rounds);
      EXPECT_EQ(sent_bytes(world), updates * (others * (2 * rounds + 2) * elems + state) + norms);
      continue;
    }
    const std::vector<std::int32_t>& arrivals = model.view.arrivals;
    const auto travelled = static_cast<std::uint64_t>(std::count_if(
        arrivals.begin(), arrivals.end(), [](std::int32_t rank) { return rank > 0; }));
    const std::uint64_t last = others - (arrivals.back() > 0 ? 1 : 0);
    EXPECT_EQ(sent_bytes(world), (travelled * 4 + last * 2) * elems + norms);
  }
}

TEST(ServerModes, NoMutationThatIsAcceptedComputesOtherTerms) {
  MutationCampaign campaign;
  std::uint64_t seed = 0;
  for (const ServedRun& at : served_runs()) {
    if (++seed % 3 != 0) continue;
    campaign.attack(served_world(at), seed, 2);
    if (HasFatalFailure()) return;
  }
  campaign.print();
  EXPECT_GE(campaign.made(), static_cast<int>(sweep(200)));
}

}  // namespace
}  // namespace sluice::testing
