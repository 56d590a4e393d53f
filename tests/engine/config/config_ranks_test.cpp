// Keys of several ranks: the ways to divide a step, schedules of pipelines, delayed updates.
#include <gtest/gtest.h>

#include <array>

#include "engine/config/config.hpp"
#include "engine/config/schema.hpp"
#include "tests/engine/config/small_config.hpp"

namespace sluice::config {
namespace {

// Counts that the ranks of a tensor or context group cannot divide, and settings that go with none.
TEST(Config, GroupsRefuseByNameWhatTheyCannotHave) {
  const auto with = [](const std::string& group, const std::string& setting) {
    return std::vector<std::string>{"parallel." + group, setting};
  };
  for (const std::string rule : {"muon", "adafactor", "sm3"}) {
    EXPECT_TRUE(holds(refusal(kSmall, with("tensor=2", "optimizer.name=" + rule)),
                      "optimizer.name = \"" + rule + "\" does not go with parallel.tensor = 2"));
  }
  EXPECT_TRUE(holds(refusal(kSmall, with("tensor=2", "optimizer.moments=8bit")),
                    "optimizer.moments = \"8bit\" does not go with parallel.tensor = 2: blocks"));
  EXPECT_EQ(parse(kSmall, with("tensor=2", "optimizer.moments=bf16")).parallel.tensor, 2);
  for (const std::string group : {"tensor=2", "context=2"}) {
    const std::string words =
        "does not go with parallel." + group.substr(0, group.find('=')) + " = 2";
    for (const std::string setting :
         {"parallel.server=true", "parallel.reduction=ring", "parallel.node_ranks=2"}) {
      std::vector<std::string> settings = with(group, setting);
      settings.push_back("train.micro_batch=1");
      EXPECT_TRUE(holds(refusal(kSmall, settings), words)) << group << ", " << setting;
    }
  }
  expect_refusals({
      {{"parallel.tensor=3"}, "parallel.tensor = 3 must divide model.heads = 4"},
      {{"parallel.tensor=2", "model.ffn=101"}, "must divide model.ffn = 101"},
      {{"parallel.tensor=4", "model.hidden=96", "model.heads=12", "model.kv_heads=6"},
       "must divide model.kv_heads = 6 or be a multiple of it"},
      {{"parallel.tensor=2", "parallel.sequence=true", "train.seq=31"},
       "must divide train.seq = 31"},
      {{"parallel.sequence=true"}, "needs parallel.tensor above 1"},
      {{"parallel.context=3", "train.micro_batch=1"}, "must be a multiple of 3"},
      {{"parallel.context=2", "train.micro_batch=2"}, "train.micro_batch must be 1"},
      {{"parallel.context=2", "train.micro_batch=1", "parallel.context_attention=\"ring\"",
        "train.seq=34"},
       "must be a multiple of 4"},
      {{"parallel.context=2", "train.micro_batch=1", "parallel.context_attention=\"ring\"",
        "parallel.tensor=4", "parallel.sequence=true", "train.seq=36"},
       "must be a multiple of 8 with parallel.context = 2, parallel.tensor = 4 and "
       "parallel.sequence: context ranks have two chunks"},
  });
  EXPECT_NO_THROW(parse(kSmall, {"parallel.context=2", "train.micro_batch=1",
                                 "parallel.context_attention=\"ring\"", "parallel.tensor=2",
                                 "parallel.sequence=true", "train.seq=36", "memory.backend=cuda"}));
  for (const std::string kv_heads : {"1", "2", "4"}) {
    EXPECT_NO_THROW(parse(kSmall, with("tensor=4", "model.kv_heads=" + kv_heads)));
  }
}

TEST(Config, AScheduleFromAFileComesBackTheSame) {
  const Config config =
      parse(kSmall, {"parallel.pipeline=2", "parallel.schedule=csv:a b/order.csv"});
  EXPECT_EQ(config.parallel.schedule, Config::PipelineSchedule::kCsv);
  EXPECT_EQ(config.parallel.schedule_file, "a b/order.csv");
  const Config again = parse_config(config_to_toml(config), "test");
  EXPECT_EQ(again.parallel.schedule_file, "a b/order.csv");
  EXPECT_EQ(config_to_toml(again), config_to_toml(config));
  // The last one of a key wins, and takes no file along.
  const Config last =
      parse(kSmall, {"parallel.pipeline=2", "parallel.schedule=csv:x", "parallel.schedule=zb-v"});
  EXPECT_EQ(last.parallel.schedule_file, "");
}

TEST(Config, AScheduleSaysTheStagesOfARank) {
  for (const auto& [schedule, stages] :
       {std::pair("1f1b", 1), {"gpipe", 1}, {"interleaved", 2}, {"vertical", 2}, {"zb-v", 2}}) {
    const Config config =
        parse(kSmall, {"parallel.pipeline=2", std::string("parallel.schedule=") + schedule});
    EXPECT_EQ(config.parallel.virtual_stages, stages) << schedule;
  }
  EXPECT_EQ(parse(kSmall, {"parallel.pipeline=2", "parallel.schedule=vertical",
                           "parallel.virtual_stages=3"})
                .parallel.virtual_stages,
            3);
  expect_refusals(
      {{{"parallel.schedule=csv:"}, "parallel.schedule must be"},
       {{"parallel.schedule=plain"}, "parallel.schedule must be"},
       {{"parallel.virtual_stages=2"}, "each rank of this parallel.schedule has 1"},
       {{"parallel.schedule=zb-v", "parallel.virtual_stages=1"}, "has 2"},
       {{"parallel.schedule=csv:x", "parallel.virtual_stages=2"}, "says the stages of each rank"},
       {{"parallel.pipeline=2", "train.order=unit"}, "leave train.order out"}});
}

TEST(Config, DelayedUpdatesRefuseWhatNeedsAllStages) {
  const auto with = [](std::vector<std::string> more) {
    std::vector<std::string> all{"parallel.pipeline=2", "parallel.schedule=2bw",
                                 "train.clip=0",        "model.tie_embeddings=false",
                                 "train.steps=20",      "parallel.updates=10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Config config = parse(kSmall, with({}));
  EXPECT_EQ(config.parallel.updates, 10);
  EXPECT_NO_THROW(check_supported(config));
  expect_refusals(
      {{with({"train.clip=1"}), "clipping by their norm has no meaning"},
       {with({"train.precision=fp16"}), "an overflow of fp16 is known only when"},
       {with({"optimizer.placement=next_forward"}), "leave optimizer.placement out"},
       {with({"checkpoint.mode=durable"}), "needs checkpoint.mode = \"scratch\""},
       {with({"train.fold_groups=2", "train.accumulate=2"}), "train.fold_groups = 1"},
       {with({"model.tie_embeddings=true"}), "needs model.tie_embeddings = false"},
       {with({"parallel.pipeline=1"}), "parallel.pipeline of at least 2"},
       {with({"train.steps=25"}), "train.steps to be a multiple of parallel.updates = 10"},
       {with({"train.eval_every=5", "data.eval_fraction=0.1"}),
        "train.eval_every to be a multiple"},
       {with({"checkpoint.every=15"}), "checkpoint.every to be a multiple"},
       {{"parallel.updates=2"}, "leave it out"}});
}

TEST(Config, RanksDivideTheMicroBatchesAndFoldWholeSubtrees) {
  for (const auto& [ranks, accumulate, groups] :
       {std::array{2, 2, 1}, {3, 6, 1}, {2, 4, 4}, {4, 8, 8}, {3, 12, 12}, {1, 12, 6}}) {
    EXPECT_NO_THROW(
        check_supported(parse(kSmall, {"parallel.zero=3", "parallel.data=" + std::to_string(ranks),
                                       "train.accumulate=" + std::to_string(accumulate),
                                       "train.fold_groups=" + std::to_string(groups)})));
  }
  const std::string two = "parallel.data=2";
  const std::string four = "parallel.data=4";
  expect_refusals({{{two, "train.accumulate=3"}, "a multiple of parallel.data = 2, such as 4"},
                   {{four, "train.accumulate=8", "train.fold_groups=2"}, "such as 4"},
                   {{two, "train.accumulate=6", "train.fold_groups=6"}, "such as 2"},
                   {{four, "train.accumulate=12", "train.fold_groups=12"}, "such as 4"}});
  EXPECT_NO_THROW(
      check_supported(parse(kSmall, {two, "train.accumulate=2", "checkpoint.mode=durable"})));
}

// The ring, the server and nodes that sum first stand only where they have a meaning.
TEST(Config, WaysToDivideAStepThatDoNotGoTogetherAreRefused) {
  const std::string data = "parallel.data=4";
  const std::string step = "train.accumulate=8";
  expect_refusals(
      {{{data, step, "parallel.server=true", "parallel.zero=2"}, "needs parallel.zero = 0"},
       {{data, step, "parallel.reduction=ring", "parallel.zero=1"}, "needs parallel.zero = 0"},
       {{data, step, "parallel.reduction=ring", "parallel.server=true"}, "no parallel.server"},
       {{data, step, "parallel.reduction=ring", "train.fold_groups=4"},
        "train.fold_groups must be 1"},
       {{"parallel.pipeline=2", "parallel.server=true"}, "not go with parallel.pipeline = 2"},
       {{data, step, "parallel.pipeline=2", "parallel.reduction=ring"}, "use \"tree\""},
       {{data, step, "train.fold_groups=4", "parallel.node_ranks=2", "parallel.pipeline=3"},
        "not go with parallel.pipeline = 3"},
       {{data, step, "parallel.server_mode=asp"}, "needs parallel.server = true"},
       {{data, step, "parallel.server=true", "parallel.server_mode=asp", "train.clip=0",
         "model.tie_embeddings=false", "train.steps=8"},
        "needs train.accumulate = 1"},
       {{data, "parallel.server=true", "parallel.server_mode=asp", "train.clip=0",
         "model.tie_embeddings=false", "train.steps=8", "parallel.updates=2"},
        "parallel.updates of at least parallel.data = 4"},
       {{data, step, "parallel.server=true", "parallel.server_mode=rotating", "train.clip=0",
         "model.tie_embeddings=false", "train.steps=12", "parallel.updates=6"},
        "a multiple of parallel.data = 4"},
       {{data, step, "parallel.server=true", "parallel.server_mode=rotating",
         "model.tie_embeddings=false", "train.steps=8"},
        "needs train.clip = 0"},
       {{data, step, "parallel.server=true", "parallel.server_mode=rotating", "train.clip=0",
         "train.steps=8", "model.tie_embeddings=true"},
        "needs model.tie_embeddings = false"},
       {{data, step, "parallel.node_ranks=2"}, "train.fold_groups above 1"},
       {{data, step, "train.fold_groups=4", "parallel.node_ranks=3"}, "must be 2, 4, 8"},
       {{data, step, "memory.place.partial=pinned"}, "memory.place.partial has no meaning"},
       {{data, "train.accumulate=4", "train.fold_groups=4", "memory.place.partial=pinned"},
        "one micro-batch for each rank"}});
}

// The setting that a refusal suggests ("such as 4") is not refused for the same key.
TEST(Config, ASuggestedNumberIsNotRefusedNext) {
  const auto number_in = [](const std::string& words) {
    const std::string start = "such as ";
    const std::size_t at = words.find(start);
    return at == std::string::npos ? std::string() : words.substr(at + start.size());
  };
  const auto sentence = [](const std::vector<std::string>& settings) -> std::string {
    try {
      parse(kSmall, settings);
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  };
  std::size_t suggested = 0;
  for (const int ranks : {2, 3, 4, 6, 8}) {
    for (const int accumulate : {1, 2, 3, 4, 6, 8, 12, 24}) {
      for (int groups = 1; groups <= accumulate; ++groups) {
        std::vector<std::string> settings{"parallel.data=" + std::to_string(ranks),
                                          "train.accumulate=" + std::to_string(accumulate),
                                          "train.fold_groups=" + std::to_string(groups)};
        for (const std::size_t key : {2u, 1u}) {
          const std::string number = number_in(sentence(settings));
          if (number.empty()) continue;
          settings[key] = settings[key].substr(0, settings[key].find('=') + 1) + number;
          ++suggested;
        }
        EXPECT_EQ(number_in(sentence(settings)), "") << sentence(settings);
      }
    }
  }
  EXPECT_GT(suggested, 100u);
}

TEST(Config, KeysOfSeveralRanksAreRefusedBesideOne) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"parallel.node_ranks=3", "parallel.data"},
      {"parallel.server=true", "parallel.data"},
      {"parallel.reduction=ring", "parallel.data"},
      {"parallel.bucket=64KiB", "parallel.data"},
      {"memory.place.partial=pinned", "parallel.data"},
      {"parallel.context_attention=ring", "parallel.context"},
      {"parallel.schedule=csv:/nowhere", "parallel.pipeline"},
      {"parallel.schedule=zb-v", "parallel.pipeline"}};
  for (const auto& [setting, count] : rows) {
    SCOPED_TRACE(setting);
    const std::string key = setting.substr(0, setting.find('='));
    const std::string words = refusal(kSmall, {count + "=1", setting});
    EXPECT_TRUE(holds(words, "--set " + setting + ": " + key + " = ")) << words;
    EXPECT_TRUE(holds(words, " has no meaning with " + count + " = 1; leave it out")) << words;
    EXPECT_EQ(refusal(kSmall, {setting}), words);
    // A run of fewer ranks rests its keys, and the configuration that it writes is its own.
    const Config resting = parse(kSmall, {setting, count + "=1"});
    const Config again = parse(config_to_toml(resting));
    EXPECT_EQ(config_to_toml(again), config_to_toml(parse(kSmall)));
    // A search for a mesh gets them back.
    std::vector<std::string> settings = mesh_settings(resting);
    settings.push_back(count + "=1");
    EXPECT_EQ(mesh_settings(parse(config_to_toml(resting), settings)), mesh_settings(resting));
  }
  const std::string nccl = "parallel.transport=nccl";
  EXPECT_EQ(refusal(kSmall, {"memory.backend=cuda", nccl}),
            "--set parallel.transport=nccl: parallel.transport = \"nccl\" has no meaning with one "
            "rank; leave it out");
  for (const std::string count : {"data", "pipeline", "context"}) {
    EXPECT_NO_THROW(parse(kSmall, {"memory.backend=cuda", nccl, "train.accumulate=4",
                                   "train.micro_batch=1", "parallel." + count + "=2"}));
  }
}

}  // namespace
}  // namespace sluice::config
