// `sluice plan`, and the refusal that train and plan share.
#include "base/units.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class PlanCommand : public CliTest {
 protected:
  // The refused event of a command. Its sentence on stderr names the same tiers and changes.
  Json refused(const Words& arguments) const {
    const auto before = snapshot();
    const ChildOutcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << outcome.err;
    EXPECT_TRUE(snapshot() == before) << "something was created or changed";
    const std::vector<Json> events = events_of(outcome);
    EXPECT_EQ(events.size(), 1u);
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    if (events.size() != 1) return Json::object();
    const Json& event = events.front();
    EXPECT_EQ(event.at("event"), "refused");
    for (const auto& [tier, facts] : event.at("tiers").items()) {
      EXPECT_GT(facts.at("needed").get<std::uint64_t>(),
                facts.at("available").get<std::uint64_t>());
      EXPECT_TRUE(holds(outcome.err, "memory." + tier + " needs"));
    }
    for (const Json& suggestion : event.at("suggestions")) {
      for (const auto& [key, value] : suggestion.items()) {
        EXPECT_TRUE(holds(outcome.err, "--set " + key + "=" + value.get<std::string>()));
      }
    }
    return event;
  }

  // Budgets as `--set`s; every suggestion runs as printed, and not with 2 MiB less of one key.
  void expect_suggestions_exact(const std::map<std::string, std::string>& budgets) const {
    const auto command = [&](const char* name, std::map<std::string, std::string> settings,
                             const Json& changes) {
      for (const auto& [key, value] : changes.items()) settings[key] = value;
      Words words{name, "config.toml", "--json", "--set", "train.steps=1"};
      for (const auto& [key, value] : settings) words.push_back(key + "=" + value);
      return words;
    };
    const Json none = Json::object();
    const Json event = refused(command("train", budgets, none));
    EXPECT_EQ(refused(command("plan", budgets, none)), event);
    EXPECT_FALSE(event.at("tiers").empty());
    EXPECT_FALSE(event.at("suggestions").empty());
    for (const Json& suggestion : event.at("suggestions")) {
      succeed(command("train", budgets, suggestion));
      fs::remove_all(path("run"));
      for (const auto& [key, value] : suggestion.items()) {
        Json less = suggestion;
        less[key] = std::to_string(*parse_bytes(value.get<std::string>()) - 2 * kMiB);
        refused(command("plan", budgets, less));
      }
    }
  }
};

TEST_F(PlanCommand, PrintsTheSamePlanAsTrain) {
  // The disk's room, which the budget would follow, may change between the two.
  const Words storage{"--set", "memory.storage=8GiB"};
  const ChildOutcome plan = succeed(Words{"plan", "config.toml", "--json"} + storage);
  EXPECT_FALSE(fs::exists(path("run")));
  const ChildOutcome train =
      succeed(Words{"train", "config.toml", "--json", "--steps", "1"} + storage);
  Json trained = events_of(train, "plan").at(0);
  EXPECT_EQ(trained.at("run_id").get<std::string>().size(), 32u);
  EXPECT_EQ(trained.at("log_dir"), path("run").string());
  EXPECT_EQ(trained.at("checkpoint_dir"), path("run/0001/checkpoints").string());
  for (const char* name : {"run_id", "log_dir", "run_dir", "checkpoint_dir"}) trained.erase(name);
  EXPECT_EQ(events_of(plan).size(), 1u);
  Json planned = events_of(plan).at(0);
  planned.erase("outlook");  // only for a person who plans
  EXPECT_EQ(planned, trained);
  EXPECT_EQ(Json::parse(read_file(path("run/0001/plan.json"))), planned);
}

TEST_F(PlanCommand, PlansForAGpuOnPaperByName) {
  Words words{"plan",     "config.toml",        "--hardware", "rtx4090-64g-1nvme",
              "--set",    "memory.device=1GiB", "--json",     "--next",
              "--explain"};
  const Json event = events_of(succeed(words)).at(0);
  EXPECT_EQ(event.at("backend"), "cuda");
  EXPECT_EQ(event.at("device_name"), "NVIDIA GeForce RTX 4090");
  const Json& outlook = event.at("outlook");
  for (const char* key : {"tokens_per_s", "flops_per_s", "mfu", "break_even", "wear", "bound_s",
                          "critical_path_s", "memory", "next", "explain"}) {
    EXPECT_TRUE(outlook.contains(key)) << key;
  }
  double path_s = 0;
  for (const auto& [name, seconds] : outlook.at("critical_path_s").items()) {
    path_s += seconds.get<double>();
  }
  EXPECT_NEAR(path_s, event.at("step_time_s").get<double>(), 1e-6);
  EXPECT_GT(outlook.at("wear").at("days_to_endurance").get<double>(), 0);
  EXPECT_EQ(outlook.at("memory").size(), 5u);

  words.erase(words.begin() + 6);
  const std::string text = succeed(words).out;
  for (const char* word :
       {"speed ", "tokens/s", "MFU of 165", "(simulated)", "path ", "weights ", "gradients ",
        "optimizer ", "activations ", "staging ", "endurance ", "next ", "tried "}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
}

TEST_F(PlanCommand, AnUnknownMachineIsRefusedWithThoseThereAre) {
  expect_refused({"plan", "config.toml", "--json", "--hardware", "rtx9999"},
                 {"rtx9999", "rtx4090-64g-1nvme", "h200-128g-1nvme"});
}

TEST_F(PlanCommand, PrintsTheSamePlanForPeopleOnStdout) {
  const ChildOutcome outcome = succeed({"plan", "config.toml"});
  EXPECT_EQ(outcome.err, "");
  for (const char* word : {"model ", "parameters", "plan ", "device ", "pinned ", "storage ",
                           "a step ", "bound by "}) {
    EXPECT_TRUE(holds(outcome.out, word));
  }
}

TEST_F(PlanCommand, SaysWhyNoGpuIsUsedWhereOneMayBe) {
  const Json event = events_of(succeed({"plan", "config.toml", "--json"})).at(0);
  if (event.at("backend") != "host") GTEST_SKIP() << "there is a GPU";
  const std::string reason = event.at("gpu_missing");
  EXPECT_FALSE(reason.empty());
  const std::string device = "device      CPU (emulates a GPU's memory)\n";
  EXPECT_TRUE(succeed({"plan", "config.toml"})
                  .out.starts_with(device + "            GPU not used: " + reason + "\n"));
  const Words chosen{"plan", "config.toml", "--set", "memory.backend=host"};
  EXPECT_TRUE(succeed(chosen).out.starts_with(device + "model "));
}

// The last cause is named where no mesh has a plan, even if none was refused for want of bytes.
TEST_F(PlanCommand, ASearchOfMeshesWithoutAPlanSaysWhy) {
  expect_refused({"plan", "config.toml", "--mesh", "auto", "--world", "1", "--hardware", "dgx-a100",
                  "--set", "train.accumulate=1000000"},
                 {"no mesh fits; the nearest, data 1, tensor 1", "lower train.accumulate"});
}

TEST_F(PlanCommand, ShowsTheTierOfActivationsAndTheBytesThatMove) {
  Words plan{"plan",
             "config.toml",
             "--json",
             "--set",
             "memory.place.activation=storage",
             "recompute.policy=none",
             "memory.prefetch=0"};
  const ChildOutcome outcome = succeed(plan);
  const Json event = events_of(outcome).at(0);
  EXPECT_EQ(event.at("units_by_tier").at("activation"), (Json{{"storage", 4}}));
  const Json& moved = event.at("activation_bytes_moved");
  for (const char* link : {"upload", "download", "storage_read", "storage_write"}) {
    EXPECT_GT(moved.at(link).get<std::uint64_t>(), 0u) << link;
    EXPECT_LE(moved.at(link), event.at("bytes_moved").at(link));
  }
  plan.erase(plan.begin() + 2);
  EXPECT_TRUE(holds(succeed(plan).out, "spilled     activations of units: 4 storage; up "));
}

TEST_F(PlanCommand, WritesTheTraceOfTheStep) {
  succeed({"plan", "config.toml", "--trace", "step.json"});
  const Json trace = Json::parse(read_file(path("step.json")));
  EXPECT_GT(trace.at("spans").size(), 20u);
  bool reads = false;
  for (const Json& name : trace.at("names")) {
    reads = reads || name.get<std::string>().find("storage_read") != std::string::npos;
  }
  EXPECT_TRUE(reads);
}

TEST_F(PlanCommand, ATraceThatCannotBeWrittenIsReported) {
  const ChildOutcome outcome = run({"plan", "config.toml", "--trace", "absent/step.json"});
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_TRUE(holds(outcome.err, "absent/step.json"));
}

TEST_F(PlanCommand, ARefusalNamesTheShortTierAndTheLeastThatFits) {
  expect_suggestions_exact({{"memory.device", "2MiB"}});
  expect_suggestions_exact({{"memory.storage", "0"}, {"memory.pinned", "2MiB"}});
}

TEST_F(PlanCommand, ARefusalOfTwoShortTiersSuggestsForBoth) {
  expect_suggestions_exact(
      {{"memory.device", "2MiB"}, {"memory.pinned", "0"}, {"memory.storage", "0"}});
}

// The default budget of storage is the free room on its paths. A suggestion that this machine would
// refuse is not made. /proc is a file system with no room.
TEST_F(PlanCommand, ADiskWithoutRoomRefusesStateThatMustLieThere) {
  const Words on_full_disk{"plan", "config.toml", "--json", "--set", "memory.storage_paths=/proc"};
  const Json event = refused(on_full_disk);
  EXPECT_EQ(event.at("tiers").at("storage").at("available"), 0);
  EXPECT_TRUE(event.at("suggestions").empty()) << event;
  // The sentence names the place, not the size of the state.
  EXPECT_TRUE(holds(event.at("message"), "memory.storage_paths: '/proc' cannot be written"));
  const ChildOutcome given =
      run({"plan", "config.toml", "--set", "memory.storage_paths=/proc/x", "memory.storage=1GiB"});
  EXPECT_EQ(given.exit_status, 2);
  EXPECT_TRUE(holds(given.err, "memory.storage_paths: '/proc/x' cannot be written")) << given.err;

  Words elsewhere = on_full_disk;
  elsewhere.emplace_back("memory.place.optimizer=auto");
  succeed(elsewhere);  // pinned memory has room
  elsewhere.emplace_back("memory.pinned=2MiB");
  elsewhere.emplace_back("memory.device=12MiB");
  const Json short_of_memory = refused(elsewhere);
  EXPECT_FALSE(short_of_memory.at("suggestions").empty());
  for (const Json& suggestion : short_of_memory.at("suggestions")) {
    EXPECT_FALSE(suggestion.contains("memory.storage")) << suggestion;
  }
}

}  // namespace
}  // namespace sluice::testing
