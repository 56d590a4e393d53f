// Durable commits of a tensor group, from outside: jobs of other sizes go on from them to one
// export, and a commit whose slices are forged or missing is refused in one sentence.
#include <filesystem>

#include "tests/support/forged_record.hpp"
#include "tests/tools/sluice/rank_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class TensorCommits : public RankTest {
 protected:
  // Two steps of two ranks, in "saved".
  void SetUp() override {
    const ChildOutcome saved =
        run_launched(2, train_words({"log.dir=saved", "parallel.tensor=2",
                                     "checkpoint.mode=durable", "model.heads=4", "model.kv_heads=2",
                                     "model.vocab=257", "train.micro_batch=1", "train.accumulate=4",
                                     "recompute.policy=none", "memory.place.activation=device"}) +
                            Words{"--steps", "2"});
    ASSERT_EQ(saved.exit_status, 0) << saved.err;
  }
  // Goes on from a copy of "saved" in "copy", which `change` changes.
  void expect_copy_refused(const Words& words, const std::function<void(const fs::path&)>& change,
                           const Words& settings = {"parallel.tensor=1"}) {
    SCOPED_TRACE(::testing::PrintToString(words));
    copy_run(path("saved"), path("copy"));
    change(path("copy/0001/checkpoints"));
    expect_refused(Words{"train", "copy", "--steps", "4", "--set"} + settings, words);
  }
  // The record of a rank; of both for -1.
  void expect_forged_refused(int rank, const Words& words, const std::function<void(Json&)>& edit) {
    expect_copy_refused(words, [&](const fs::path& checkpoints) {
      for (const int each : {0, 1}) {
        if (rank < 0 || rank == each) edit_record(checkpoints.string(), each, edit);
      }
    });
  }
};

TEST_F(TensorCommits, JobsOfOtherSizesExportTheSameFile) {
  const std::string weights = read_file(path("saved/0001/weights.safetensors"));
  const std::vector<std::pair<int, Words>> jobs{
      {1, {"parallel.tensor=1"}},
      {4, {"parallel.tensor=4"}},
      {4, {"parallel.tensor=2", "parallel.data=2", "parallel.zero=3"}},
      {4, {"parallel.tensor=2", "parallel.context=2", "parallel.context_attention=ring"}},
  };
  for (const auto& [ranks, settings] : jobs) {
    SCOPED_TRACE(::testing::PrintToString(settings));
    copy_run(path("saved"), path("copy"));
    fs::remove(path("copy/0001/weights.safetensors"));
    const Words here = Words{"train", "copy", "--json", "--steps", "2", "--set"} + settings;
    const ChildOutcome same = ranks == 1 ? run(here) : run_launched(ranks, here);
    ASSERT_EQ(same.exit_status, 0) << same.err;
    EXPECT_TRUE(read_file(path("copy/0001/weights.safetensors")) == weights);
    // Another step, and its commit.
    const Words on = Words{"train", "copy", "--json", "--steps", "3", "--set"} + settings;
    const ChildOutcome next = ranks == 1 ? run(on) : run_launched(ranks, on);
    ASSERT_EQ(next.exit_status, 0) << next.err;
    EXPECT_EQ(events_of(next, "checkpoint").back().at("step"), 3);
  }
}

TEST_F(TensorCommits, ForgedAndMissingBoxesAreRefusedInOneSentence) {
  expect_forged_refused(1, {"rank-1/state-", "lacks a box of rank 1 of a group of 2"},
                        [](Json& record) { record["boxes"].erase(1); });
  expect_forged_refused(
      1, {"rank-1/state-", "names a box that rank 1 of a group of 2 does not"},
      [](Json& record) { record["boxes"][1][3] = record["boxes"][1][3].get<int>() + 1; });
  expect_forged_refused(1, {"rank-1/state-", "an entry of 'boxes' must be a list"},
                        [](Json& record) { record["boxes"][1] = "all"; });
  expect_forged_refused(1, {"rank-1/state-", "says parallel.tensor = 8, and", "says 2"},
                        [](Json& record) { record["settings"]["parallel.tensor"] = "8"; });
  expect_forged_refused(0, {"says parallel.context = 1, and", "says 2"},
                        [](Json& record) { record["settings"]["parallel.context"] = "2"; });
  expect_forged_refused(-1, {"parallel.context = 2, which 2 ranks cannot be"},
                        [](Json& record) { record["settings"]["parallel.context"] = "2"; });
  expect_forged_refused(-1, {"names a box that rank 0 of a group of 1 does not have"},
                        [](Json& record) { record["settings"]["parallel.tensor"] = "1"; });
  expect_copy_refused({"commit of step 2", "only 1 of its 2 ranks have a log"},
                      [](const fs::path& checkpoints) {
                        fs::remove(checkpoint::logs_in((checkpoints / "rank-1").string()).at(0));
                      });
  expect_copy_refused({"is missing: put the directories rank-1, rank-2 and so on back"},
                      [](const fs::path& checkpoints) { fs::remove_all(checkpoints / "rank-1"); });
}

}  // namespace
}  // namespace sluice::testing
