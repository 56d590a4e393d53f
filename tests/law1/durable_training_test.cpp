// Durable runs: the bits of scratch runs, resumed from the state on storage, with faults and
// without.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/durable_recovery.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "offload/storage_file.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr std::uint64_t kLogHeaderBytes = 8192;  // offload/state_log.hpp
const Overrides kDurableModel = kChosenByHand + small_gpt2(2, 12) + kLearning;

std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename() != "lock") files.push_back(entry.path());
  }
  return files;
}

// Shares decide only the place of state; a resume finds it by the record's shares.
TEST(Durable, ResumesWhereItsDataLieWhateverSharesItsPathsHaveNow) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kDurableModel));
  const std::vector<std::vector<double>> stages{{1, 3}, {3, 1}, {}, {1, 15}};
  std::atomic<int> signal{0};
  TrainingOptions options;
  options.stop_signal = &signal;
  TrainingRecord whole;
  for (const std::vector<double>& shares : stages) {
    config::Config config = bench.config("run", kDurableModel + kStored + durable(2));
    const std::string first = config.memory.storage_paths.at(0);
    config.memory.storage_paths = {first + "-a", first + "-b"};
    config.memory.storage_shares = shares;
    const TrainingRecord part = TrainingBench::run(config, options, [&](const StepReport& report) {
      signal = report.step % 3 == 0 && report.step < 12 ? 15 : 0;
    });
    if (!shares.empty()) {
      EXPECT_EQ(part.plan.at("storage_shares"),
                (std::vector<std::uint32_t>(shares.begin(), shares.end())));
    }
    EXPECT_EQ(part.plan.at("storage_shares").size(), 2u);
    whole.append(part);
    options.resume = bench.run_directory("run");
  }
  expect_same_bits(whole, reference);
}

fs::path only_file_in(const fs::path& directory) {
  const std::vector<fs::path> files = files_in(directory);
  EXPECT_EQ(files.size(), 1u) << directory;
  return files.at(0);
}

class DurableRun : public ::testing::Test {
 protected:
  DurableRun() : config_(bench_.config("run", kDurableModel + kPinnedState + durable(4))) {
    TrainingBench::run(config_, until(6));
  }
  fs::path only_log() const { return only_file_in(checkpoints_); }
  fs::path only_data() const { return only_file_in(storage_); }
  // The steps that a resume of `run` trains.
  std::size_t resume(const std::string& run = "run") const {
    return TrainingBench::run(config_, until(0, bench_.run_directory(run))).losses.size();
  }
  // A resume leaves the log and the data that are there, or replaces both.
  void expect_resume_keeps_files(bool keeps, std::size_t steps) const {
    const fs::path log = only_log();
    const fs::path data = only_data();
    EXPECT_EQ(resume(), steps);
    EXPECT_EQ(only_log() == log, keeps);
    EXPECT_EQ(only_data() == data, keeps);
  }
  static void flip(const fs::path& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }
  // The record of the commit `at` before the newest.
  checkpoint::SavedState record(std::size_t at) const {
    const auto engine = offload::make_storage_engine("posix", {});
    checkpoint::CheckpointManifest manifest;
    checkpoint::SavedState state;
    checkpoint::parse_state_record(
        offload::StateLog::read(*engine, only_log().string()).records.at(at).text, "log", manifest,
        state);
    return state;
  }
  std::string refusal() const {
    return message_of<InputError>([&] { resume(); });
  }

  TrainingBench bench_;
  config::Config config_;
  const std::string checkpoints_ = bench_.first_run("run") + "/checkpoints";
  const std::string storage_ = bench_.first_run("run") + "/storage";
};

TEST_F(DurableRun, LeavesOneLogAndOneFileAndResumeReplacesThem) {
  EXPECT_EQ(fs::status(only_data()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  expect_resume_keeps_files(false, 6);
}

// A copy of a run directory takes its data along, and goes on without touching the original's. With
// hard links, as `cp -al` and backups make them, its log is the original's by another name.
TEST_F(DurableRun, ACopyGoesOnBesideItsOriginal) {
  const fs::path log = only_log();
  const fs::path data = only_data();
  for (const auto& [copy, how] : {std::pair("copy", fs::copy_options::none),
                                  std::pair("linked", fs::copy_options::create_hard_links)}) {
    SCOPED_TRACE(copy);
    fs::copy(bench_.first_run("run"), bench_.run_directory(copy),
             fs::copy_options::recursive | how);
    EXPECT_EQ(resume(copy), 6u);
    EXPECT_EQ(only_log(), log);
    EXPECT_EQ(only_data(), data);
  }
  only_file_in(bench_.run_directory("copy") + "/storage");
  EXPECT_EQ(resume(), 6u);
  EXPECT_EQ(bytes_of_file(bench_.first_run("run") + "/weights.safetensors"),
            bytes_of_file(bench_.run_directory("copy") + "/weights.safetensors"));
}

TEST_F(DurableRun, ALogOwnsItsDataWhereverItIsMounted) {
  const std::string log = only_log().string();
  checkpoint::SavedState state = record(0);
  EXPECT_TRUE(checkpoint::owns_data(log, {state.log, state.log_id}));
  state.log_id.replace(0, 16, 16, 'f');  // another device
  EXPECT_TRUE(checkpoint::owns_data(log, {state.log, state.log_id}));
  const fs::path moved = log + ".moved";
  fs::rename(log, moved);
  EXPECT_FALSE(checkpoint::owns_data(moved, {state.log, state.log_id}));
  state.log_id = offload::file_id(moved);
  EXPECT_TRUE(checkpoint::owns_data(moved, {state.log, state.log_id}));
  fs::copy(moved, log);
  EXPECT_FALSE(checkpoint::owns_data(log, {state.log, state.log_id}));
  fs::remove(log);
  fs::create_hard_link(moved, log);
  EXPECT_TRUE(checkpoint::owns_data(log, {state.log, state.log_id}));
  EXPECT_FALSE(checkpoint::owns_data(moved, {state.log, state.log_id}));
}

// A copy of the log alone names data that are another's.
TEST_F(DurableRun, ACopiedLogLeavesTheDataThatItNames) {
  const fs::path data = only_data();
  const std::string checkpoints = bench_.run_directory("copy") + "/checkpoints";
  fs::create_directories(checkpoints);
  fs::copy(only_log(), checkpoints);
  for (const char* name : {"/config.toml", "/events.jsonl"}) {
    fs::copy(bench_.first_run("run") + name, bench_.run_directory("copy") + name);
  }
  EXPECT_EQ(resume("copy"), 6u);
  EXPECT_TRUE(fs::exists(data));
  EXPECT_EQ(resume(), 6u);
}

// Nothing is left to do: no step and no commit, and the files stay.
TEST_F(DurableRun, KeepsTheFilesOfAFinishedRun) {
  resume();
  expect_resume_keeps_files(true, 0);
}

// The commit before the last is whole too, until a step overwrites its copy.
TEST_F(DurableRun, DamagedStateIsPassedOverForTheCommitBefore) {
  const checkpoint::SavedState newest = record(0);
  const runtime::SavedHome& home = newest.homes.at(2);
  flip(only_data(), home.offset + home.bytes / 2);
  const checkpoint::SavedState before = record(1);
  EXPECT_NE(before.homes.at(2).offset, home.offset);
  EXPECT_EQ(resume(), 8u);  // from step 4
}

TEST_F(DurableRun, DamagedStateOfBothCommitsIsRefusedByName) {
  for (const std::size_t at : {0u, 1u}) {
    const runtime::SavedHome home = record(at).homes.at(2);
    flip(only_data(), home.offset + home.bytes / 2);
  }
  const runtime::SavedHome home = record(0).homes.at(2);
  EXPECT_TRUE(holds(refusal(), std::string(state_kind_name(home.kind)) + " of unit " +
                                   std::to_string(home.unit) + " is not what was committed"));
}

// An error that passes says nothing about the data; one that stays leaves the commit before.
TEST_F(DurableRun, AFailedReadIsTriedOnceMore) {
  for (const bool forever : {false, true}) {
    // The first operations read the log.
    const auto engine = offload::make_faulty_engine(offload::make_storage_engine("posix", {}),
                                                    {offload::StorageFault::kEio, 6, forever});
    std::vector<checkpoint::PassedOver> passed_over;
    const auto found = checkpoint::recover_state(*engine, only_log().string(), {}, passed_over);
    EXPECT_EQ(found.has_value(), !forever);
    EXPECT_EQ(passed_over.size(), forever ? 2u : 0u);
    EXPECT_EQ(found ? found->manifest.step : 6, 6);
    for (const checkpoint::PassedOver& passed : passed_over) EXPECT_FALSE(passed.absent);
  }
}

TEST_F(DurableRun, APipeInTheWayOfALogIsPassedOver) {
  const std::string pipe = checkpoint::state_log_path(checkpoints_, std::string(32, 'a'));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(resume(), 6u);
  EXPECT_TRUE(fs::exists(pipe));
}

// Resumes that were killed before they committed.
TEST_F(DurableRun, AResumeRemovesFilesOfKilledResumes) {
  const fs::path log = only_log();
  const fs::path data = only_data();
  const std::string killed(32, 'a');
  std::ofstream(checkpoint::state_log_path(checkpoints_, killed)) << std::string(8192, '\0');
  std::ofstream(storage_ + "/sluice-" + killed + "-0.durable") << "x";
  // A log without its first byte, and without data.
  std::ofstream(checkpoint::state_log_path(checkpoints_, std::string(32, 'c')));
  // Where it is: nothing is committed.
  TrainingBench::run(config_, until(6, bench_.run_directory("run")));
  EXPECT_EQ(only_log(), log);
  EXPECT_EQ(only_data(), data);
}

TEST_F(DurableRun, ANameThatIsNoTextIsRefusedBeforeAnythingIsMade) {
  config_.checkpoint.dir = bench_.run_directory("\xff");
  EXPECT_TRUE(holds(message_of<InputError>([&] { TrainingBench::run(config_); }), "not UTF-8"));
  EXPECT_FALSE(fs::exists(config_.checkpoint.dir));
}

// Files below the run directory move with it, however it is named.
TEST(Durable, AMovedRunTakesItsDataAlong) {
  const TrainingBench bench;
  config::Config config = bench.config("run", kDurableModel + kPinnedState + durable(4));
  config.log.dir += "/";
  config.memory.storage_paths = {bench.run_directory("run") + "/fast"};
  TrainingBench::run(config, until(6));
  const std::string moved = bench.run_directory("moved");
  fs::rename(bench.run_directory("run"), moved);
  EXPECT_EQ(TrainingBench::run(config, until(0, moved)).losses.size(), 6u);
  EXPECT_FALSE(fs::exists(bench.run_directory("run")));
  only_file_in(moved + "/0001/fast");
  only_file_in(moved + "/0001/checkpoints");
}

// An older checkpoint of files is there all the time.
TEST_F(DurableRun, ACommitIsNotAbandonedForAnOlderCheckpoint) {
  fs::remove_all(config_.log.dir);
  TrainingBench::run(bench_.config("run", kDurableModel + kPinnedState), until(3));
  TrainingBench::run(config_, until(6, bench_.run_directory("run")));
  const fs::path log = checkpoint::logs_in(checkpoints_).at(0);
  // Its disk is not mounted.
  fs::rename(storage_, storage_ + ".away");
  const std::string words = refusal();
  EXPECT_TRUE(holds(words, "is not there"));
  EXPECT_TRUE(holds(words, "from step 3 instead of 6"));
  EXPECT_EQ(checkpoint::logs_in(checkpoints_), std::vector<std::string>{log});
  fs::remove_all(storage_);
  fs::rename(storage_ + ".away", storage_);
  // All of it is damaged: the run goes on from its other state, and leaves these files to
  // their owner.
  const fs::path data = only_data();
  const auto bytes = fs::file_size(data);
  std::ofstream(data, std::ios::binary) << std::string(bytes, 'x');
  EXPECT_EQ(resume(), 9u);
  EXPECT_TRUE(fs::exists(log));
  EXPECT_TRUE(fs::exists(data));
}

TEST_F(DurableRun, ADamagedRecordLeavesTheOneBefore) {
  const std::uint64_t area = (fs::file_size(only_log()) - kLogHeaderBytes) / 2;
  flip(only_log(), kLogHeaderBytes + 100);  // one of the two
  const auto engine = offload::make_storage_engine("posix", {});
  EXPECT_EQ(offload::StateLog::read(*engine, only_log().string()).records.size(), 1u);
  flip(only_log(), kLogHeaderBytes + area + 100);  // the other
  EXPECT_TRUE(offload::StateLog::read(*engine, only_log().string()).records.empty());
  EXPECT_TRUE(holds(refusal(), "2 of its two records cannot be read"));
}

// As a crash may leave it: nothing of that log is kept once the run has committed again.
TEST_F(DurableRun, ALogWithATornRecordIsRetiredLikeAnother) {
  flip(only_log(), kLogHeaderBytes + 100);
  const fs::path log = only_log();
  resume();
  EXPECT_NE(only_log(), log);
  only_data();
}

TEST_F(DurableRun, WithOtherSettingsIsRefused) {
  config_.train.seed = 2;
  EXPECT_TRUE(holds(refusal(), "was made with train.seed = 1, which is 2 now"));
}

// Any storage operation fails: the run ends with the right bits, or with exit 3. The commits that
// it had made by then resume to the right bits.
TEST(DurableFaults, EndAtTheLastCommitFromWhichTheRunGoesOn) {
  const TrainingBench bench;
  const config::Config config =
      bench.config("run", tiny_stored_model(5) + kPinnedState + durable(2) +
                              Overrides{"memory.storage_engine=posix"});
  std::uint64_t operations = 0;
  const auto train_with = [&](const offload::FaultPlan& plan, std::int64_t& committed) {
    TrainingOptions options;
    const offload::StorageEngine* engine = nullptr;
    options.wrap_storage = [&](std::unique_ptr<offload::StorageEngine> inner) {
      auto faulty = offload::make_faulty_engine(std::move(inner), plan);
      engine = faulty.get();
      return faulty;
    };
    std::string hash;
    const EventSink sink = [&](const RunEvent& event) {
      if (event.at("event") == "checkpoint") committed = event.at("step").get<std::int64_t>();
      if (event.at("event") != "done") return;
      hash = event.at("weights_hash").get<std::string>();
      operations = offload::faulty_engine_operations(*engine);
    };
    train(config, options, sink, [](const StepReport&) {});
    return hash;
  };
  std::int64_t ignored = 0;
  const std::string right = train_with({}, ignored);
  const std::uint64_t all = operations;
  constexpr std::uint64_t kRuns = 48;
  int resumed = 0;
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    const offload::FaultPlan plan{
        run % 2 == 0 ? offload::StorageFault::kEio : offload::StorageFault::kEnospc,
        run * all / kRuns, run % 3 == 0};
    SCOPED_TRACE("operation " + std::to_string(plan.at_operation) + " of " + std::to_string(all));
    fs::remove_all(config.log.dir);
    std::int64_t committed = 0;
    try {
      EXPECT_EQ(train_with(plan, committed), right);
      continue;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 3) << error.what();
    }
    try {
      const TrainingRecord rest = TrainingBench::run(config, until(0, config.log.dir));
      EXPECT_EQ(rest.weights_hash, right);
      EXPECT_LE(static_cast<std::int64_t>(rest.losses.size()), 5 - committed);
      ++resumed;
    } catch (const InputError&) {
      EXPECT_EQ(committed, 0) << "a commit is lost";
      // A run that committed nothing leaves no data.
      const fs::path storage = bench.first_run("run") + "/storage";
      EXPECT_TRUE(!fs::exists(storage) || fs::is_empty(storage));
    }
  }
  EXPECT_GT(resumed, 10);
}

}  // namespace
}  // namespace sluice::train
