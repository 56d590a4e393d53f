// Runs whose results depend on more than the model and the data (delayed updates, asynchronous
// servers, sums around a ring) and those next to them that do not. Each is stopped, one key is
// changed, and the run is resumed: it ends with the bits of the undisturbed run, or the change is
// refused.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kStop = 4;  // of 8 steps

Overrides small_model() {
  return kChosenByHand + Overrides{"model.family=llama",  "model.tie_embeddings=false",
                                   "model.layers=2",      "model.hidden=32",
                                   "model.heads=2",       "train.seq=8",
                                   "train.micro_batch=1", "train.accumulate=4",
                                   "train.steps=8",       "train.clip=0",
                                   "train.threads=1",     "optimizer.schedule=constant",
                                   "memory.backend=host"};
}

struct Rule {
  std::string name;
  Overrides settings;
};

const std::vector<Rule>& rules() {
  const std::string four = "parallel.updates=4";
  const Overrides server{"parallel.data=2", "parallel.server=true", four};
  static const std::vector<Rule> list{
      {"pipedream", {"parallel.pipeline=2", "parallel.schedule=pipedream", four}},
      {"pipedream-vsync", {"parallel.pipeline=3", "parallel.schedule=pipedream-vsync", four}},
      {"2bw", {"parallel.pipeline=2", "parallel.schedule=2bw", four}},
      {"asp", server + Overrides{"parallel.server_mode=asp", "train.accumulate=1"}},
      {"rotating", server + Overrides{"parallel.server_mode=rotating"}},
      {"ring", {"parallel.data=2", "parallel.reduction=ring"}},
      {"1f1b", {"parallel.pipeline=2"}}};
  return list;
}

// Keys that a user may set at a resume, in addition to keys whose change is always refused.
const std::vector<Overrides>& changes() {
  static const std::vector<Overrides> list{{"parallel.data=2"},
                                           {"parallel.data=2", "parallel.zero=1"},
                                           {"parallel.data=2", "parallel.zero=3"},
                                           {"parallel.data=1", "parallel.server=false"},
                                           {"parallel.data=4"},
                                           {"parallel.pipeline=1"},
                                           {"parallel.pipeline=2"},
                                           {"parallel.pipeline=3"},
                                           {"parallel.updates=2"},
                                           {"parallel.updates=1", "parallel.schedule=1f1b"},
                                           {"parallel.schedule=2bw"},
                                           {"parallel.schedule=zb-h1"},
                                           {"parallel.server_mode=bsp", "parallel.updates=1"},
                                           {"parallel.server_mode=rotating"},
                                           {"parallel.reduction=tree"},
                                           {"parallel.bucket=64KiB"},
                                           {"train.steps=16"},
                                           {"recompute.policy=unit"},
                                           {"memory.chunk=4MiB", "memory.prefetch=0"},
                                           places("pinned", "pinned", "storage")};
  return list;
}

config::Config config_of_run(const TrainingBench& bench, const std::string& run, const Rule& rule,
                             const Overrides& change = {}) {
  return bench.config(run, small_model() + rule.settings + change);
}

// The refusal's sentence, or nothing: the resumed run has the bits of the undisturbed one.
std::optional<std::string> resume_with(const TrainingBench& bench, const Rule& rule,
                                       const Overrides& change, const TrainingRecord& whole) {
  static int runs = 0;
  const std::string run = rule.name + std::to_string(++runs);
  TrainingOptions options;
  options.stop_at_step = kStop;
  TrainingRecord record = train_in_world(config_of_run(bench, run, rule), options);
  TrainingOptions resume;
  resume.resume = bench.run_directory(run);
  resume.stop_at_step = 2 * kStop;
  try {
    record.append(train_in_world(config_of_run(bench, run, rule, change), resume));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 2) << error.what();
    return error.what();
  }
  EXPECT_EQ(record.losses, whole.losses);
  EXPECT_EQ(record.norms, whole.norms);
  EXPECT_EQ(record.weights_hash, whole.weights_hash);
  return std::nullopt;
}

// Draws `count` pairs of a rule and a change; SLUICE_CHANGED_RESUMES and SLUICE_CHANGED_SEED ask
// for others.
std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(ChangedResume, EndsWithTheSameBitsOrIsRefused) {
  const TrainingBench bench;
  const std::uint64_t count = number_in("SLUICE_CHANGED_RESUMES", sweep(10));
  const CounterRng random(number_in("SLUICE_CHANGED_SEED", 41), stream_of("test/changes"));
  std::map<std::string, TrainingRecord> undisturbed;
  std::uint64_t equal = 0;
  for (std::uint64_t i = 0; i < count && !HasFailure(); ++i) {
    const Rule& rule = rules()[i % rules().size()];
    const Overrides& change = changes()[random.below(i, changes().size())];
    SCOPED_TRACE(rule.name + ", " + ::testing::PrintToString(change));
    TrainingRecord& whole = undisturbed[rule.name];
    if (whole.losses.empty()) {
      whole = train_in_world(config_of_run(bench, "whole-" + rule.name, rule));
    }
    equal += resume_with(bench, rule, change, whole) ? 0 : 1;
  }
  EXPECT_GT(equal, count / 5);
  EXPECT_LT(equal, count);
}

// The micro-batches of each of PipeDream's pipelines decide which weights they read. Those of 2BW
// read an update's weights on any mesh.
TEST(ChangedResume, OtherPipelinesAreRefusedWhereTheyDecideTheResult) {
  const TrainingBench bench;
  for (const Rule& rule : rules()) {
    if (rule.name == "asp" || rule.name == "rotating" || rule.name == "ring") continue;
    SCOPED_TRACE(rule.name);
    const TrainingRecord whole = train_in_world(config_of_run(bench, "w-" + rule.name, rule));
    const auto refusal = resume_with(bench, rule, {"parallel.data=2", "parallel.zero=1"}, whole);
    EXPECT_EQ(refusal.has_value(), rule.name.starts_with("pipedream"));
    if (refusal) {
      EXPECT_TRUE(holds(*refusal, "was made with parallel.data = 1, which is 2 now")) << *refusal;
    }
  }
}

// The sentence names a key that differs, with the values of both configurations.
TEST(ChangedResume, ARefusalNamesTheKeyThatWasChanged) {
  const TrainingBench bench;
  const Overrides bsp{"parallel.server_mode=bsp", "parallel.updates=1", "train.accumulate=2"};
  const Rule& asp = rules()[3];
  const auto back = resume_with(bench, asp, bsp, {});
  ASSERT_TRUE(back);
  EXPECT_TRUE(holds(*back, R"(was made with parallel.server_mode = "asp", which is "bsp" now)"))
      << *back;
  const Rule plain{"bsp", asp.settings + bsp};
  const auto forth = resume_with(
      bench, plain, {"parallel.server_mode=asp", "parallel.updates=4", "train.accumulate=1"}, {});
  ASSERT_TRUE(forth);
  EXPECT_TRUE(holds(*forth, R"(does not name parallel.server_mode, which determines the result )"
                            R"(and is "asp" now)"))
      << *forth;
  const Rule& ring = rules()[5];
  const auto alone = resume_with(bench, ring, {"parallel.data=4"}, {});
  ASSERT_TRUE(alone);
  EXPECT_TRUE(holds(*alone, "was made with parallel.data = 2, which is 4 now")) << *alone;
  const Rule delayed{
      "1f1b", rules()[0].settings + Overrides{"parallel.schedule=1f1b", "parallel.updates=1"}};
  const auto later =
      resume_with(bench, delayed, {"parallel.schedule=2bw", "parallel.updates=4"}, {});
  ASSERT_TRUE(later);
  EXPECT_TRUE(holds(*later, R"(does not name parallel.schedule, which determines the result and )"
                            R"(is "2bw" now)"))
      << *later;
}

}  // namespace
}  // namespace sluice::train
