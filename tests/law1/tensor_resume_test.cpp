// Law 1 over resumes of tensor and context groups: groups of one size go on from a checkpoint or a
// durable commit of each other's to the bits of the whole run, in whatever mesh. Checkpoints of
// files have no trace of the groups. Durable commits name the slices of their parts, so groups of
// another size read them.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/durable_record.hpp"
#include "engine/config/shapes.hpp"
#include "tests/support/forged_record.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

config::Config config_of(const TrainingBench& bench, const std::string& run, int data,
                         const std::string& groups, const std::string& mode) {
  return bench.config(
      run,
      Overrides{"model.layers=1", "model.hidden=32", "model.heads=2", "train.seq=16",
                "train.micro_batch=1", "train.steps=4", "train.threads=1", "train.accumulate=4",
                "data.eval_fraction=0.2", "train.eval_every=2", "memory.backend=host",
                // The ranks of a tensor group hold copies of one key/value head. Files have one of
                // them, which all must have equal bits with, also where moments are rounded.
                groups.starts_with("parallel.tensor") ? "model.kv_heads=1" : "model.kv_heads=2",
                groups.starts_with("parallel.tensor") ? "optimizer.moments=bf16"
                                                      : "optimizer.moments=fp32",
                "recompute.policy=none", "memory.place.activation=device",
                "memory.place.weight=device", "memory.place.gradient=pinned",
                "memory.place.optimizer=storage", "checkpoint.every=1",
                "parallel.data=" + std::to_string(data),
                "parallel.zero=" + std::to_string(data > 1 ? 3 : 0), groups, mode});
}

TEST(TensorResume, GroupsOfOneSizeGoOnToTheBitsOfTheWholeRun) {
  for (const char* groups : {"parallel.tensor=2", "parallel.context=2"}) {
    for (const char* mode : {"checkpoint.mode=scratch", "checkpoint.mode=durable"}) {
      const bool context = groups[9] == 'c', durable = mode[16] == 'd';
      if (samples_sweeps() && context == durable) continue;
      SCOPED_TRACE(std::string(groups) + ", " + mode);
      const TrainingBench bench;
      const TrainingRecord whole = train_in_world(config_of(bench, "whole", 1, groups, mode));
      ASSERT_EQ(whole.losses.size(), 4u);
      for (const auto& [from, to] : {std::pair(1, 2), {2, 1}, {2, 2}}) {
        // Each group has both ways, to fewer and to more ranks, and each mode has both.
        if ((from == 1) != (samples_sweeps() ? durable : context == durable)) continue;
        const std::string run = std::to_string(from) + "to" + std::to_string(to);
        SCOPED_TRACE(run);
        expect_resumed_bits(bench, run, config_of(bench, run, from, groups, mode),
                            config_of(bench, run, to, groups, mode), whole);
      }
    }
  }
}

TrainingOptions until(std::int64_t step, const std::string& resume = "") {
  TrainingOptions options;
  options.stop_at_step = step;
  options.resume = resume;
  return options;
}

// A commit goes from groups to others and back without a step between, and the run goes on to its
// own bits.
TEST(TensorResume, DurableCommitsGoOnInGroupsOfAnotherSize) {
  const TrainingBench bench;
  const auto in = [&](const std::string& run, int data, const std::string& groups) {
    return config_of(bench, run, data, groups, "checkpoint.mode=durable");
  };
  const TrainingRecord whole = train_in_world(in("whole", 1, "parallel.tensor=2"));
  TrainingRecord record = train_in_world(in("run", 1, "parallel.tensor=2"), until(2));
  const std::string resume = bench.run_directory("run"), hash = record.weights_hash;
  for (const auto& [data, groups] :
       {std::pair(1, "parallel.tensor=1"), {2, "parallel.tensor=2"}, {2, "parallel.tensor=1"}}) {
    SCOPED_TRACE(std::to_string(data) + ", " + groups);
    const TrainingRecord same = train_in_world(in("run", data, groups), until(2, resume));
    EXPECT_EQ(same.weights_hash, hash);
    EXPECT_TRUE(same.losses.empty());
  }
  record.append(train_in_world(in("run", 1, "parallel.tensor=2"), until(4, resume)));
  EXPECT_EQ(record.losses, whole.losses);
  EXPECT_EQ(record.weights_hash, whole.weights_hash);
}

// Units of several I/O buffers, and parts of tensors that break in the midst of blocks.
config::Config config_of_mesh(const TrainingBench& bench, const std::string& run,
                              const Overrides& mesh) {
  return bench.config(
      run, Overrides{"model.layers=2", "model.hidden=128", "model.heads=4", "model.kv_heads=2",
                     "model.vocab=257", "train.seq=16", "train.micro_batch=1", "train.steps=18",
                     "train.threads=1", "train.accumulate=4", "data.eval_fraction=0.2",
                     "train.eval_every=0", "memory.backend=host", "checkpoint.every=1",
                     "recompute.policy=none", "memory.place.activation=device"} +
               places("pinned", "pinned", "pinned") + mesh);
}

// A mesh trains two steps from the commit of another and commits both, and the next goes on from
// there. Checkpoints of files lead through the same meshes to the same bits.
TEST(TensorResume, GroupsOfAnotherSizeTrainAndCommitInTurn) {
  std::vector<Overrides> meshes{
      {"parallel.tensor=2"},
      {"parallel.tensor=1"},
      {"parallel.tensor=1"},
      {"parallel.tensor=2"},
      {"parallel.tensor=4"},
      {"parallel.tensor=2"},
      {"parallel.context=2", "parallel.data=2", "parallel.zero=3"},
      {"parallel.pipeline=2"},
      {"parallel.tensor=2"},
  };
  // Each number of ranks once.
  if (samples_sweeps()) meshes = {meshes[0], meshes[1], meshes[4], meshes[6], meshes[7]};
  const TrainingBench bench;
  const auto train_in_turn = [&](const std::string& run, const Overrides& settings) {
    TrainingRecord record;
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      SCOPED_TRACE(run + ", mesh " + std::to_string(i) + " of " + meshes[i].front());
      const std::string resume = i == 0 ? "" : bench.run_directory(run);
      const auto step = 2 * static_cast<std::int64_t>(i + 1);
      record.append(
          train_in_world(config_of_mesh(bench, run, settings + meshes[i]), until(step, resume)));
      EXPECT_EQ(record.end, TrainingEnd::kDone);
    }
    return record;
  };
  const TrainingRecord files = train_in_turn("files", {"checkpoint.mode=scratch"});
  EXPECT_EQ(files.losses.size(), 2 * meshes.size());
  for (const char* const place : {"storage", "pinned"}) {
    if (samples_sweeps() && place[0] == 'p') continue;
    SCOPED_TRACE(place);
    const TrainingRecord durable = train_in_turn(
        place, {"checkpoint.mode=durable", std::string("memory.place.weight=") + place,
                std::string("memory.place.optimizer=") + place});
    EXPECT_EQ(durable.losses, files.losses);
    EXPECT_EQ(durable.norms, files.norms);
    EXPECT_EQ(durable.weights_hash, files.weights_hash);
  }
}

// A slice begins where the layout has its first element.
TEST(TensorResume, RecordsNameWhereEachBoxBegins) {
  const TrainingBench bench;
  const config::Config config =
      config_of(bench, "run", 1, "parallel.tensor=2", "checkpoint.mode=durable");
  std::size_t slices = 0;
  for (const int rank : {0, 1}) {
    const model::Model model(config::model_shape(config), config::tensor_share(config, rank));
    for (const checkpoint::SavedSlice& saved : checkpoint::slices_of(model, {0, 1, 2})) {
      for (const model::PlacedTensor& tensor :
           model.layout(static_cast<std::size_t>(saved.unit)).tensors()) {
        if (tensor.spec.name != saved.tensor) continue;
        const std::vector<std::int64_t>& whole = tensor.spec.whole_shape;
        const std::int64_t cols = whole.size() > 1 ? whole.back() : 1;
        const auto run = tensor.spec.run_at(saved.first_elem - tensor.first_elem);
        EXPECT_EQ(run.first, static_cast<std::uint64_t>(saved.slice.row * cols + saved.slice.col))
            << rank << ", " << saved.tensor;
        ++slices;
      }
    }
  }
  EXPECT_GT(slices, 10u);
}

// --- forged records
// --------------------------------------------------------------------------------

using Json = nlohmann::json;

TEST(TensorResume, ForgedAndMissingBoxesAreRefusedByName) {
  struct Forgery {
    int rank;  // -1: both
    std::function<void(Json&)> edit;
    std::string words;
  };
  const auto without_unit = [](Json& list, int unit) {
    Json rest = Json::array();
    for (const Json& entry : list) {
      if ((entry.is_array() ? entry[0] : entry["unit"]) != unit) rest.push_back(entry);
    }
    list = rest;
  };
  const std::vector<Forgery> forgeries{
      {1, [](Json& record) { record["boxes"][2][3] = record["boxes"][2][3].get<int>() + 1; },
       "names a box that rank 1 of a group of 2 does not have: rows 33 to 49"},
      {1, [](Json& record) { record["boxes"][2][2] = 4096; }, "names a box that rank 1"},
      {1, [](Json& record) { record["boxes"].erase(1); }, "lacks a box of rank 1 of a group of 2"},
      {0, [](Json& record) { record.erase("boxes"); }, "lacks a box of rank 0 of a group of 2"},
      {0, [](Json& record) { record["boxes"].push_back(record["boxes"][0]); },
       "names a box of rank 0 of a group of 2 twice"},
      {0, [](Json& record) { record["boxes"][0] = "all"; }, "an entry of 'boxes' must be a list"},
      {0, [](Json& record) { record["boxes"] = 7; }, "'boxes' must be a list"},
      {0, [](Json& record) { record["settings"]["parallel.tensor"] = "3"; },
       "says parallel.tensor = 2, and"},
      {-1, [](Json& record) { record["settings"]["parallel.tensor"] = "3"; },
       "parallel.tensor = 3, and this model has no parts for as many ranks"},
      {-1, [](Json& record) { record["settings"]["parallel.tensor"] = "two"; },
       "'parallel.tensor' must be a whole number above 0"},
      {1, [](Json& record) { record["settings"]["parallel.tensor"] = "8"; },
       "says parallel.tensor = 8, and"},
      {0, [](Json& record) { record["settings"]["parallel.context"] = "2"; },
       "says parallel.context = 1, and"},
      {0, [](Json& record) { record["space"]["ranks"] = 1; },
       "says parallel.tensor = 2 and parallel.context = 1, which 1 ranks cannot be"},
      {1,
       [&](Json& record) {
         without_unit(record["boxes"], 1);
         without_unit(record["homes"], 1);
       },
       "a part of 'blocks.0."}};
  const TrainingBench bench;
  const auto in = [&](const std::string& run, const std::string& groups) {
    return config_of(bench, run, 1, groups, "checkpoint.mode=durable");
  };
  train_in_world(in("run", "parallel.tensor=2"), until(2));
  for (const Forgery& forgery : forgeries) {
    SCOPED_TRACE(forgery.words);
    const std::filesystem::path forged = bench.run_directory("forged");
    copy_run(bench.run_directory("run"), forged);
    for (const int rank : {0, 1}) {
      if (forgery.rank == 1 - rank) continue;
      edit_record(bench.first_run("forged") + "/checkpoints", rank, forgery.edit);
    }
    const std::string words = message_of<InputError>(
        [&] { train_in_world(in("forged", "parallel.tensor=1"), until(4, forged.string())); });
    EXPECT_NE(words.find(forgery.words), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace sluice::train
