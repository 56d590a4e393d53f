// `sluice train --resume`: what continues, and what is refused before anything is touched.
#include <sys/stat.h>

#include <algorithm>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

// A run of two steps with a checkpoint of each.
class Resume : public CliTest {
 protected:
  Resume() {
    const ChildOutcome outcome = succeed({"train", "config.toml", "--json", "--set",
                                          "train.steps=2", "--set", "checkpoint.every=1"});
    hash_ = events_of(outcome, "done").at(0).at("weights_hash");
  }

  fs::path newest(const std::string& file) const {
    return path("run/checkpoints/step-00000002") / file;
  }
  fs::path oldest(const std::string& file) const {
    return path("run/checkpoints/step-00000001") / file;
  }
  Words resume(const Words& more = {}) const {
    Words words{"train", "config.toml", "--json", "--set", "train.steps=2", "--resume", "run"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void drop_oldest() const { fs::remove_all(oldest("").parent_path()); }

  std::string hash_;
};

TEST_F(Resume, OfARunThatIsDoneTrainsNoStepAndKeepsItsWeights) {
  const ChildOutcome outcome = succeed(resume());
  EXPECT_TRUE(events_of(outcome, "step").empty());
  EXPECT_EQ(events_of(outcome, "done").at(0).at("weights_hash"), hash_);
}

TEST_F(Resume, TakesTheRunDirectoryWhateverTheConfigurationNames) {
  fs::rename(path("run"), path("moved"));
  const ChildOutcome outcome =
      succeed({"train", "config.toml", "--set", "train.steps=2", "--resume", "moved"});
  EXPECT_FALSE(fs::exists(path("run")));
  EXPECT_NE(outcome.err.find("moved/weights.safetensors"), std::string::npos) << outcome.err;
}

TEST_F(Resume, CutsTheHalfLineOfAKilledRun) {
  const std::string events = read_file(path("run/events.jsonl"));
  write_file(path("run/events.jsonl"), events + R"({"event":"step","st)");
  drop_oldest();
  succeed(resume());
  for (const std::string& line : lines_of(read_file(path("run/events.jsonl")))) {
    EXPECT_TRUE(Json::accept(line)) << line;
  }
  succeed({"report", "run"});
}

TEST_F(Resume, ItsManifestHoldsTheThreadTeam) {
  EXPECT_EQ(Json::parse(read_file(newest("manifest.json"))).at("threads"), 1);
  succeed({"train", "config.toml", "--set", "train.steps=1", "train.threads=0", "log.dir=other"});
  EXPECT_GE(Json::parse(read_file(path("other/checkpoints/step-00000001/manifest.json")))
                .at("threads")
                .get<int>(),
            1);
}

TEST_F(Resume, FromTheRunsOwnConfiguration) {
  const ChildOutcome outcome = succeed({"train", "run/config.toml", "--json", "--resume", "run"});
  EXPECT_EQ(events_of(outcome, "done").at(0).at("weights_hash"), hash_);
}

TEST_F(Resume, PassesOverADamagedCheckpointAndSaysSo) {
  const std::string state = read_file(newest("state.safetensors"));
  write_file(newest("state.safetensors"), state.substr(0, state.size() / 2));
  const ChildOutcome outcome = succeed(resume());
  EXPECT_NE(outcome.err.find("checkpoint passed over"), std::string::npos) << outcome.err;
  EXPECT_EQ(events_of(outcome, "step").size(), 1u);
  EXPECT_EQ(events_of(outcome, "done").at(0).at("weights_hash"), hash_);
}

// A run directory that came from somebody else.
TEST_F(Resume, NoLinkAndNoPipeIsOpenedToWrite) {
  write_file(path("victim"), "mine");
  for (const char* name : {"run/lock", "run/checkpoints/lock", "run/config.toml.tmp"}) {
    fs::create_symlink(path("victim"), path(name));
    expect_refused(resume(), {name, "no regular file"});
    fs::remove(path(name));
  }
  const std::string events = read_file(path("run/events.jsonl"));
  fs::remove(path("run/events.jsonl"));
  fs::create_symlink(path("victim"), path("run/events.jsonl"));
  expect_refused(resume(), {"run/events.jsonl", "no regular file"});
  fs::remove(path("run/events.jsonl"));
  ASSERT_EQ(::mkfifo(path("run/events.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(run(resume()).exit_status, 2);
  fs::remove(path("run/events.jsonl"));
  write_file(path("run/events.jsonl"), events);
  succeed(resume());
}

TEST_F(Resume, WithoutACheckpointIsRefused) {
  fs::remove_all(path("run/checkpoints"));
  expect_refused(resume(), {"run/checkpoints", "no checkpoint"});
  fs::remove_all(path("run"));
  expect_refused(resume(), {"run/checkpoints", "no checkpoint"});
}

TEST_F(Resume, OfAnotherModelNamesTheFirstTensorThatDiffers) {
  expect_refused(resume({"--set", "model.hidden=32"}),
                 {"state.safetensors", "'embedding.tokens.weight'", "[256, 64]", "[256, 32]"});
  expect_refused(resume({"--set", "model.layers=3"}), {"another model", "'blocks.2."});
  expect_refused(resume({"--set", "model.layers=1"}), {"another model", "'blocks.1."});
  expect_refused(resume({"--set", "train.precision=fp32"}),
                 {"another model", "'embedding.tokens.weight'"});
}

TEST_F(Resume, WithOtherSettingsOrDataIsRefused) {
  expect_refused(resume({"--set", "train.seed=2"}),
                 {"train.seed = 1", "which is 2 now", "config.toml"});
  expect_refused(resume({"--set", "optimizer.lr=0.5"}), {"optimizer.lr", "which is 0.5 now"});
  expect_refused(resume({"--set", "train.steps=9"}), {"train.steps = 2, which is 9 now"});
  write_file(path("text.txt"), read_file(path("text.txt")) + "One line more.\n");
  expect_refused(resume(), {"other data", "data.paths"});
}

TEST_F(Resume, WhereMemoryIsMayDiffer) {
  for (const char* change : {"memory.place.optimizer=pinned", "memory.storage_engine=posix",
                             "memory.chunk=4MiB", "recompute.policy=unit"}) {
    SCOPED_TRACE(change);
    fs::remove_all(newest("").parent_path());
    const ChildOutcome outcome = succeed(resume({"--set", change}));
    EXPECT_EQ(events_of(outcome, "done").at(0).at("weights_hash"), hash_);
  }
}

TEST_F(Resume, ADamagedManifestIsRefused) {
  drop_oldest();
  const std::string whole = read_file(newest("manifest.json"));
  for (const std::string& text : {std::string("{"), std::string(), std::string("[]"),
                                  whole.substr(0, whole.size() / 2), whole + "x"}) {
    SCOPED_TRACE(text);
    write_file(newest("manifest.json"), text);
    expect_refused(resume(), {"manifest.json"});
  }
  fs::remove(newest("manifest.json"));
  expect_refused(resume(), {"manifest.json", "cannot be read"});
}

TEST_F(Resume, ADamagedStateIsRefused) {
  drop_oldest();
  const std::string whole = read_file(newest("state.safetensors"));
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  write_file(newest("state.safetensors"), flipped);
  expect_refused(resume(), {"state.safetensors", "corrupt"});
  write_file(newest("state.safetensors"), whole.substr(0, whole.size() - 1));
  expect_refused(resume(), {"state.safetensors", std::to_string(whole.size() - 1), "bytes"});
  fs::remove(newest("state.safetensors"));
  expect_refused(resume(), {"state.safetensors", "cannot be read"});
}

TEST_F(Resume, OtherArithmeticIsRefusedUnlessAskedFor) {
  Json manifest = Json::parse(read_file(newest("manifest.json")));
  manifest["arithmetic"] = "another-library";
  write_file(newest("manifest.json"), manifest.dump());
  expect_refused(resume(), {"'another-library'", "--accept-arithmetic"});
  succeed(resume({"--accept-arithmetic"}));
}

}  // namespace
}  // namespace sluice::testing
