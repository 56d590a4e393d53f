// `sluice train --resume`: the runs that continue, and those that are refused untouched.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/digest.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

// A run of two steps with a checkpoint of each.
class Resume : public CliTest {
 protected:
  Resume() { hash_ = hash_of(succeed(train_words({"train.steps=2", "checkpoint.every=1"}))); }

  fs::path newest(const std::string& file) const {
    return path("run/0001/checkpoints/step-00000002") / file;
  }
  fs::path oldest(const std::string& file) const {
    return path("run/0001/checkpoints/step-00000001") / file;
  }
  Words resume(const Words& more = {}) const {
    return train_words({"train.steps=2"}) + Words{"--resume", "run"} + more;
  }
  void drop_oldest() const { fs::remove_all(oldest("").parent_path()); }
  void drop_newest() const { fs::remove_all(newest("").parent_path()); }
  // With the digest that belongs to it.
  void write_manifest(Json manifest) const {
    manifest.erase("digest");
    const std::string text = manifest.dump();
    Digest digest;
    digest.update(text.data(), text.size());
    manifest["digest"] = digest.finish().hex();
    write_file(newest("manifest.json"), manifest.dump());
  }

  std::string hash_;
};

TEST_F(Resume, AFinishedRunTrainsNoStepAndKeepsItsWeights) {
  const ChildOutcome outcome = succeed(resume());
  EXPECT_TRUE(events_of(outcome, "step").empty());
  EXPECT_EQ(hash_of(outcome), hash_);
}

TEST_F(Resume, CutsTheHalfLineOfAKilledRun) {
  const fs::path events = path("run/0001/events.jsonl");
  write_file(events, read_file(events) + R"({"event":"step","st)");
  drop_oldest();
  succeed(resume());
  for (const std::string& line : lines_of(read_file(events))) {
    EXPECT_TRUE(Json::accept(line)) << line;
  }
  succeed({"report", "run"});
}

TEST_F(Resume, PassesOverADamagedCheckpointAndSaysSo) {
  const std::string state = read_file(newest("state.safetensors"));
  write_file(newest("state.safetensors"), state.substr(0, state.size() / 2));
  const ChildOutcome outcome = succeed(resume());
  EXPECT_TRUE(holds(outcome.err, "checkpoint passed over"));
  EXPECT_EQ(events_of(outcome, "step").size(), 1u);
  EXPECT_EQ(hash_of(outcome), hash_);
}

// A run directory may come from another user.
TEST_F(Resume, NoLinkAndNoPipeIsOpenedToWrite) {
  write_file(path("victim"), "mine");
  for (const char* name : {"run/0001/lock", "run/0001/config.toml.tmp"}) {
    fs::create_symlink(path("victim"), path(name));
    expect_refused(resume(), {name, "not a regular file"});
    fs::remove(path(name));
  }
  fs::rename(path("run/0001/events.jsonl"), path("kept"));
  fs::create_symlink(path("victim"), path("run/0001/events.jsonl"));
  EXPECT_EQ(run(resume()).exit_status, 2);
  fs::remove(path("run/0001/events.jsonl"));
  ASSERT_EQ(::mkfifo(path("run/0001/events.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(run(resume()).exit_status, 2);
  EXPECT_EQ(read_file(path("victim")), "mine");
  fs::remove(path("run/0001/events.jsonl"));
  fs::rename(path("kept"), path("run/0001/events.jsonl"));
  succeed(resume());
}

TEST_F(Resume, WithoutACheckpointIsRefused) {
  fs::remove_all(path("run/0001/checkpoints"));
  expect_refused(resume(), {"run/0001/checkpoints", "no checkpoint"});
}

TEST_F(Resume, RefusesAnotherModelByTheFirstTensorThatDiffers) {
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
  expect_refused(resume({"--set", "train.steps=1"}), {"train.steps is 1 now", "reached step 2"});
  const std::string before = Json::parse(read_file(newest("manifest.json"))).at("data_fingerprint");
  write_file(path("text.txt"), read_file(path("text.txt")) + "One line more.\n");
  expect_refused(resume(), {"other data", "fingerprint " + before, "data.paths = [\"text.txt\"]",
                            "now has fingerprint"});
}

// Data are known by their contents.
TEST_F(Resume, DataMayHaveMoved) {
  drop_newest();
  fs::create_directories(path("moved"));
  fs::rename(path("text.txt"), path("moved/renamed"));
  expect_refused(resume(), {"data.paths", "'text.txt'"});
  EXPECT_EQ(hash_of(succeed(resume({"--set", "data.paths=[\"moved/renamed\"]"}))), hash_);
}

// Under the constant rate more steps are the same steps; the cosine follows the new total, and a
// message says so.
TEST_F(Resume, MoreStepsMayBeAskedFor) {
  const auto train = [&](const Words& more) {
    const ChildOutcome outcome = succeed(train_words() + more);
    return std::pair(hash_of(outcome),
                     outcome.err.find("train.steps was 2 and is 4 now") != std::string::npos);
  };
  const std::string constant = "optimizer.schedule=constant";
  const auto whole = train({"--set", "log.dir=whole", constant, "train.steps=4"});
  train({"--set", "log.dir=parts", constant, "train.steps=2"});
  EXPECT_EQ(train({"--resume", "parts", "--set", constant, "train.steps=4"}), whole);
  const auto cosine = train({"--resume", "run", "--set", "train.steps=4"});
  EXPECT_TRUE(cosine.second);
  EXPECT_NE(cosine.first, whole.first);
}

TEST_F(Resume, MemorySettingsMayDiffer) {
  for (const char* change : {"memory.place.optimizer=pinned", "memory.storage_engine=posix",
                             "memory.chunk=4MiB", "recompute.policy=unit"}) {
    SCOPED_TRACE(change);
    drop_newest();
    EXPECT_EQ(hash_of(succeed(resume({"--set", change}))), hash_);
  }
}

// manifest_test has all the ways in which files may be damaged.
TEST_F(Resume, ADamagedCheckpointIsRefused) {
  drop_oldest();
  const std::string manifest = read_file(newest("manifest.json"));
  write_file(newest("manifest.json"), manifest.substr(0, manifest.size() / 2));
  expect_refused(resume(), {"manifest.json"});
  write_file(newest("manifest.json"), manifest);
  const std::string whole = read_file(newest("state.safetensors"));
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  write_file(newest("state.safetensors"), flipped);
  expect_refused(resume(), {"state.safetensors", "corrupt"});
}

TEST_F(Resume, AManifestThatFitsNotItsCheckpointIsRefused) {
  drop_oldest();
  const Json whole = Json::parse(read_file(newest("manifest.json")));
  const auto refused = [&](const char* key, const Json& value, const Words& words) {
    Json manifest = whole;
    manifest[key] = value;
    write_manifest(manifest);
    expect_refused(resume(), words);
  };
  refused("step", 5, {"'step' is 5, which is not the directory's"});
  refused("weights_hash", std::string(32, '0'), {"their hash is not 'weights_hash'"});
  write_manifest(whole);
  fs::rename(newest("manifest.json"), path("elsewhere"));
  fs::create_symlink(path("elsewhere"), newest("manifest.json"));
  expect_refused(resume(), {"manifest.json", "cannot be read"});
  fs::remove(newest("manifest.json"));
  fs::rename(path("elsewhere"), newest("manifest.json"));
  succeed(resume());
}

// It may be whole, and newer than the one that this version can read.
TEST_F(Resume, AManifestOfALaterVersionStopsTheResume) {
  Json manifest = Json::parse(read_file(newest("manifest.json")));
  manifest["version"] = 99;
  write_manifest(manifest);
  ASSERT_TRUE(fs::exists(oldest("manifest.json")));
  expect_refused(resume(), {"step-00000002/manifest.json", "'version' is 99"});
}

TEST_F(Resume, OtherArithmeticIsRefusedUnlessAskedFor) {
  Json manifest = Json::parse(read_file(newest("manifest.json")));
  manifest["arithmetic"] = "another-library";
  write_manifest(manifest);
  expect_refused(resume(), {"'another-library'", "--accept-arithmetic"});
  succeed(resume({"--accept-arithmetic"}));
}

// --- faults outside the state --------------------------------------------------------------------

class OutsideFault : public CliTest {
 protected:
  static Words slow(const Words& more = {}) {
    return train_words({"train.steps=40", "memory.link_latency=2ms"}) + more;
  }
  // It ended with exit 3 and the reason, its last step is saved, and it goes on to the right end.
  void expect_saved(const ChildOutcome& outcome, const std::string& why) const {
    EXPECT_EQ(outcome.exit_status, 3);
    const std::size_t last = events_of(outcome, "step").back().at("step");
    for (const std::string& words :
         {why, "step " + std::to_string(last) + " is saved in run/0001/checkpoints"}) {
      EXPECT_TRUE(holds(outcome.err, words));
    }
    const ChildOutcome rest = succeed({"train", "run", "--json"});
    EXPECT_EQ(events_of(rest, "resume").at(0).at("step"), last);
    EXPECT_EQ(hash_of(rest), hash_of(succeed(slow({"log.dir=whole"}))));
  }
};

// The log meets a limit of file sizes that neither a checkpoint nor the host device's memory does.
TEST_F(OutsideFault, ALogThatCannotBeWrittenSavesFirst) {
  succeed(slow({"--steps", "1"}));
  constexpr std::size_t kLimit = 64 << 20;
  const fs::path log = path("run/0001/events.jsonl");
  std::string events = read_file(log);
  events += R"({"padding":")" + std::string(kLimit - 5000 - events.size(), 'x') + "\"}\n";
  write_file(log, events);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = kLimit;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lowered), 0);
  const auto child = start({"train", "run", "--json"});  // inherits the limit
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_saved(child->wait(kCliDeadline), "events.jsonl' cannot be written: File too large");
}

TEST_F(OutsideFault, DataThatCannotBeReadSaveFirst) {
  const std::string text = read_file(path("text.txt"));
  const auto child = start(slow());
  child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
  write_file(path("text.txt"), "");
  const ChildOutcome outcome = child->wait(kCliDeadline);
  write_file(path("text.txt"), text);
  expect_saved(outcome, "the data cannot be read");
}

TEST_F(Resume, AUsersCopyOfACheckpointTakesNoPlace) {
  succeed({"train", "config.toml", "--json", "--steps", "2"});
  const fs::path checkpoints = path("run/0002/checkpoints");
  for (const char* name : {"step-00000002-best", "step-00000001-old"}) {
    fs::copy(checkpoints / "step-00000002", checkpoints / name, fs::copy_options::recursive);
  }
  succeed({"train", "run", "--json", "--steps", "4"});
  for (const char* name : {"step-00000004", "step-00000002-best", "step-00000001-old"}) {
    EXPECT_TRUE(fs::exists(checkpoints / name)) << name;
  }
}

// `latest` moves on with the next start, and a run that was named by it must not.
TEST_F(Resume, ARunNamedByLatestKeepsItsOwnDirectory) {
  succeed({"train", "config.toml", "--json", "--steps", "2"});
  const ChildOutcome outcome = succeed({"train", "run/latest", "--json", "--steps", "3"});
  EXPECT_EQ(events_of(outcome, "plan").at(0).at("run_dir"), path("run/0002").string());
}

}  // namespace
}  // namespace sluice::testing
