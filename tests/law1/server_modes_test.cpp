// Servers that make several updates in one schedule: an asynchronous one, compared with a plain
// loop of its rule in which each worker keeps a copy of the weights, and one whose place goes
// around, compared with one rank alone. Losses and final weights are equal to the bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/parallel/server_order.hpp"
#include "tests/support/pipeline_training.hpp"
#include "tests/support/plain_loop.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kServedUpdates = 20;

struct ServerCase {
  std::string mode = "asp";
  int ranks = 2;
  int updates = 20;  // of each schedule
  int rounds = 1;    // micro-batches of each rank in an update, where all wait for each other
  Overrides settings = {};
};

Overrides served_model(const ServerCase& at) {
  const int accumulate = at.mode == "asp" ? 1 : at.ranks * at.rounds;
  return Overrides{"model.family=llama",
                   "model.tie_embeddings=false",
                   "model.layers=2",
                   "model.hidden=32",
                   "model.heads=2",
                   "model.vocab=64",
                   "train.seq=8",
                   "train.micro_batch=1",
                   "train.steps=20",
                   "train.precision=fp32",
                   "train.clip=0",
                   "train.order=microbatch",
                   "optimizer.placement=in_backward",
                   "optimizer.carried_units=0",
                   "train.accumulate=" + std::to_string(accumulate)} +
         at.settings;
}

Overrides served(const ServerCase& at) {
  return served_model(at) + Overrides{"parallel.server=true", "parallel.server_mode=" + at.mode,
                                      "parallel.data=" + std::to_string(at.ranks),
                                      "parallel.updates=" + std::to_string(at.updates)};
}

// A worker computes with the weights that it last had from the server: those after its own
// arrival.
UpdateRule rule_of_server(const ServerCase& at, const config::Config& config) {
  if (at.mode != "asp") {
    return {at.updates,
            [accumulate = config.train.accumulate](std::size_t, std::int64_t microbatch) {
              return microbatch / accumulate;
            }};
  }
  const std::vector<std::int32_t> arrivals =
      parallel::draw_arrivals(at.ranks, at.updates, static_cast<std::uint64_t>(config.train.seed));
  return {at.updates, [arrivals](std::size_t, std::int64_t microbatch) {
            std::int64_t version = 0;
            for (std::int64_t before = 0; before < microbatch; ++before) {
              const auto place = static_cast<std::size_t>(before);
              if (arrivals[place] == arrivals[static_cast<std::size_t>(microbatch)]) {
                version = before + 1;
              }
            }
            return version;
          }};
}

void expect_served_loop(const ServerCase& at) {
  SCOPED_TRACE(at.mode + ", " + std::to_string(at.ranks) + " ranks, " + std::to_string(at.updates) +
               " updates, " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const config::Config alone = bench.config("run", served_model(at));
  PlannedSession planned(alone);
  const TempDirectory directory;
  const std::string initial = directory.file("initial.safetensors");
  const std::string trained = directory.file("trained.safetensors");
  planned.session().state().export_weights(initial);
  PlainLoop loop(alone, rule_of_server(at, alone), initial);
  loop.run(kServedUpdates);

  schedule::StepOptions options = planned.plan().options;
  options.stages = {{0, static_cast<std::int32_t>(options.placement.weight.size())}};
  options.exchange_lag = 0;
  const config::Config config = bench.config("run", served(at));
  const RanksRun run =
      train_on_ranks(config, options, kServedUpdates, {}, -1, {},
                     [&](Session& session) { session.state().export_weights(trained); });
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank.losses, loop.losses());
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
  EXPECT_TRUE(loop.has_weights(trained));
}

TEST(ServerModes, AnAsynchronousServerEqualsAPlainLoop) {
  for (const int ranks : {2, 3, 4}) {
    expect_served_loop({.ranks = ranks, .updates = ranks == 3 ? 10 : 20});
    expect_served_loop(
        {.ranks = ranks,
         .updates = 5,
         .settings = Overrides{"optimizer.name=lion"} +
                     places("device", ranks == 2 ? "storage" : "pinned", "storage")});
    if (HasFailure()) return;
  }
  expect_served_loop({.ranks = 8, .settings = places("device", "device", "device")});
}

// Servers in turn make the steps of one server, and so of one rank.
TEST(ServerModes, ARotatingServerEqualsAPlainLoop) {
  for (const int ranks : {2, 4}) {
    for (const auto& where :
         {places("device", "device", "device"), places("device", "pinned", "pinned")}) {
      expect_served_loop({"rotating", ranks, ranks == 2 ? 10 : 20, ranks == 2 ? 2 : 1, where});
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sluice::train
