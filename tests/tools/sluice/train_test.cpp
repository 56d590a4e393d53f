// `sluice train`: its stdout for scripts, its stderr for people, and its files on disk.
#include <set>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kTiers{"device", "pinned", "storage"};
const std::set<std::string> kLinks{"upload", "download", "storage_read", "storage_write"};

void expect_counts(const Json& object, const std::set<std::string>& names) {
  std::set<std::string> found;
  for (const auto& [name, value] : object.items()) {
    found.insert(name);
    EXPECT_TRUE(value.is_number_unsigned()) << name;
  }
  EXPECT_EQ(found, names);
}

class Train : public CliTest {};

TEST_F(Train, EventsComeInOrderWithTheirFields) {
  const ChildOutcome outcome = succeed(train_words(
      {"train.eval_every=3", "checkpoint.every=4", "optimizer.placement=after_backward"}));
  std::vector<std::string> kinds;
  for (const Json& event : events_of(outcome)) kinds.push_back(event["event"]);
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"plan", "step", "step", "step", "eval", "step", "checkpoint",
                                      "step", "step", "eval", "checkpoint", "done"}));
  const Json plan = events_of(outcome, "plan").at(0);
  EXPECT_EQ(plan.at("fits"), true);
  expect_counts(plan.at("peak_bytes"), kTiers);
  expect_counts(plan.at("bytes_moved"), kLinks);
  EXPECT_GT(plan.at("step_time_s").get<double>(), 0);
  EXPECT_TRUE(plan.at("bound_by").is_string());
  EXPECT_GT(plan.at("parameters").get<std::uint64_t>(), 100'000u);
  // 16 bytes per parameter, padded to whole norm blocks.
  EXPECT_GE(plan.at("state_bytes").get<std::uint64_t>(),
            16 * plan.at("parameters").get<std::uint64_t>());

  std::int64_t number = 0;
  std::map<std::string, std::uint64_t> moved;
  for (const Json& step : events_of(outcome, "step")) {
    EXPECT_EQ(step.at("step"), ++number);
    for (const char* field : {"loss", "grad_norm", "lr", "tokens_per_s", "step_time_s"}) {
      EXPECT_GT(step.at(field).get<double>(), 0) << field;
    }
    EXPECT_GE(step.at("stalled_fraction").get<double>(), 0);
    EXPECT_LE(step.at("stalled_fraction").get<double>(), 1);
    EXPECT_EQ(step.at("bytes_moved"), plan.at("bytes_moved"));
    for (const auto& [link, bytes] : step.at("bytes_moved").items()) {
      moved[link] += bytes.get<std::uint64_t>();
    }
  }
  for (const Json& eval : events_of(outcome, "eval")) EXPECT_GT(eval.at("loss"), 0);

  const Json done = events_of(outcome, "done").at(0);
  EXPECT_EQ(done.at("steps"), 6);
  EXPECT_EQ(done.at("weights_hash").get<std::string>().size(), 32u);
  EXPECT_EQ(done.at("peak_bytes"), plan.at("peak_bytes"));
  expect_counts(done.at("bytes_moved"), kLinks);
  for (const auto& [link, bytes] : done.at("bytes_moved").items()) {
    EXPECT_GE(bytes.get<std::uint64_t>(), moved[link]) << link;  // evaluations move bytes too
  }
}

TEST_F(Train, Fp16ReportsItsLossScaleAndItsOverflows) {
  const ChildOutcome outcome =
      succeed(train_words({"train.precision=fp16", "train.loss_scale=1073741824"}));
  const std::vector<Json> steps = events_of(outcome, "step");
  const Json& first = steps.at(0);
  EXPECT_EQ(first.at("loss_scale"), 1073741824);
  EXPECT_EQ(first.at("overflow"), true);
  EXPECT_TRUE(first.at("grad_norm").is_null());
  EXPECT_EQ(steps.at(1).at("loss_scale"), 536870912);
  const std::string line = "step 1: the gradient of '" + first.at("tensor").get<std::string>() +
                           "' overflowed fp16 at loss scale 1073741824; the update is skipped, " +
                           "the scale is now 536870912";
  EXPECT_TRUE(holds(outcome.err, line));
}

TEST_F(Train, Fp16ThatAlwaysOverflowsEndsWithOneSentence) {
  const ChildOutcome outcome =
      run(train_words({"train.precision=fp16", "train.loss_scaling=static",
                       "train.loss_scale=4294967296", "train.loss_scale_patience=2"}));
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_TRUE(
      holds(outcome.err, "stopped at step 2: gradients overflowed fp16 in 2 steps in a row"));
  EXPECT_TRUE(fs::is_regular_file(path("run/0001/checkpoints/step-00000002/manifest.json")));
}

TEST_F(Train, ThePlanAndTheSummaryAreOnStdoutAndTheStepsOnStderr) {
  const Words command{"train", "config.toml", "--steps", "2"};
  const ChildOutcome outcome = succeed(command);
  std::size_t steps = 0;
  for (const std::string& line : lines_of(outcome.err)) {
    if (!line.starts_with("step ")) continue;
    ++steps;
    for (const char* word :
         {"/2 (", "%)", "loss ", "lr ", "/step", "tokens/s", "stalled ", "ETA "}) {
      EXPECT_TRUE(holds(line, word));
    }
  }
  EXPECT_EQ(steps, 2u);
  EXPECT_TRUE(outcome.out.starts_with("device "));
  const Words summary{"\ndone ", "\nmemory ", "\nmoved ", "\nweights ", "hash "};
  for (const std::string& word : summary) EXPECT_TRUE(holds(outcome.out, word));
  // Quiet: the same answers, and nothing else.
  const ChildOutcome quiet = succeed(command + Words{"--quiet"});
  EXPECT_EQ(quiet.err, "");
  for (const std::string& word : summary) EXPECT_TRUE(holds(quiet.out, word));
  // With events the answers are notices.
  const ChildOutcome events = succeed(command + Words{"--json"});
  EXPECT_EQ(events_of(events, "done").size(), 1u);
  for (const std::string& word : summary) EXPECT_TRUE(holds(events.err, word));
  EXPECT_EQ(succeed(command + Words{"--json", "--quiet"}).err, "");
}

// Step 3 is the traced one: its event has the engine's account of its stalls, which the report
// shows, and whether it commits.
TEST_F(Train, TheFirstTheTracedTheLastAndEveryNthStepAreReported) {
  const Words durable{"checkpoint.mode=durable", "checkpoint.every=2"};
  for (const bool commits : {false, true}) {
    SCOPED_TRACE(commits);
    std::vector<int> steps;
    std::vector<Json> traced;
    const Words settings = Words{"log.every=4"} + (commits ? durable : Words{});
    for (const Json& step : events_of(succeed(train_words(settings)), "step")) {
      steps.push_back(step["step"]);
      if (step.contains("stalls")) traced.push_back(step);
    }
    EXPECT_EQ(steps, (std::vector<int>{1, 3, 4, 6}));
    ASSERT_EQ(traced.size(), 1u);
    EXPECT_EQ(traced[0].at("step"), 3);
    EXPECT_EQ(traced[0].value("commits", false), commits);
    EXPECT_GT(traced[0].at("measured_peak_bytes").at("device"), 0);
  }
}

TEST_F(Train, LeavesTheFilesOfItsRunAndNoStorage) {
  const ChildOutcome outcome = succeed({"train", "config.toml", "--json"});
  for (const char* name :
       {"config.toml", "plan.json", "plan_trace.json", "trace.json", "events.jsonl",
        "weights.safetensors", "checkpoints/step-00000006/manifest.json",
        "checkpoints/step-00000006/state.safetensors", "huggingface/model.safetensors",
        "huggingface/config.json"}) {
    EXPECT_TRUE(fs::is_regular_file(path("run/0001") / name)) << name;
  }
  const std::string manifest = read_file(find_file("run", "manifest.json"));
  EXPECT_EQ(Json::parse(manifest).at("threads"), 1);
  EXPECT_TRUE(fs::is_empty(path("run/0001/storage")));
  EXPECT_EQ(read_file(path("run/0001/events.jsonl")), outcome.out);
}

TEST_F(Train, SavesNothingAtTheEndIfAskedTo) {
  const ChildOutcome saved = succeed(train_words());
  const Words unsaved = train_words({"checkpoint.final=false", "log.dir=unsaved"});
  const ChildOutcome outcome = succeed(unsaved);
  EXPECT_EQ(hash_of(outcome), hash_of(saved));
  EXPECT_TRUE(events_of(outcome, "checkpoint").empty());
  EXPECT_FALSE(holds(outcome.err, "weights.safetensors"));
  for (const char* name : {"weights.safetensors", "huggingface", "checkpoints/step-00000006"}) {
    EXPECT_TRUE(fs::exists(path("run/0001") / name)) << name;
    EXPECT_FALSE(fs::exists(path("unsaved/0001") / name)) << name;
  }
  // Checkpoints that are due are saved as ever.
  EXPECT_EQ(events_of(succeed(unsaved + Words{"log.dir=every", "checkpoint.every=4"}), "checkpoint")
                .size(),
            1u);
  succeed({"train", "config.toml", "--resume", "every"});
  EXPECT_EQ(read_file(path("every/0001/weights.safetensors")),
            read_file(path("run/0001/weights.safetensors")));
}

TEST_F(Train, OneSetTakesSeveralKeysAndLeavesTheConfigurationItsPlace) {
  const ChildOutcome outcome =
      succeed({"train", "--json", "--set", "train.steps=2", "log.dir=other", "config.toml"});
  EXPECT_EQ(events_of(outcome, "step").size(), 2u);
  EXPECT_TRUE(fs::exists(path("other/0001/weights.safetensors")));
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Train, StorageIsLeftAloneWhereNothingLiesThere) {
  succeed({"train", "config.toml", "--steps", "1", "--set", "memory.place.optimizer=device"});
  EXPECT_FALSE(fs::exists(path("run/0001/storage")));
}

TEST_F(Train, WritesNoDirectoryForTransformersWhereThatLacksTheModelAndSaysWhy) {
  const ChildOutcome outcome =
      succeed({"train", "config.toml", "--steps", "1", "--set", "model.kv_heads=1"});
  EXPECT_TRUE(holds(outcome.err, "huggingface' is not written: model.kv_heads is 1"));
  EXPECT_FALSE(fs::exists(find_file("run", "weights.safetensors").parent_path() / "huggingface"));
}

}  // namespace
}  // namespace sluice::testing
