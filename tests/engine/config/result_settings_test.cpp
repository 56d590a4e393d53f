// The settings that decide results, which a resumed run must have again.
#include <gtest/gtest.h>

#include <array>

#include "engine/config/config.hpp"
#include "tests/engine/config/small_config.hpp"

namespace sluice::config {
namespace {

TEST(Config, DelayedUpdatesDecideResults) {
  const std::vector<std::string> base{"train.clip=0", "model.tie_embeddings=false",
                                      "train.steps=20"};
  const auto settings = [&](const std::string& schedule, const std::string& ranks) {
    std::vector<std::string> all = base;
    all.insert(all.end(), {"parallel.schedule=" + schedule, "parallel.pipeline=" + ranks});
    return result_settings(parse(kSmall, all));
  };
  EXPECT_EQ(settings("1f1b", "2"), settings("gpipe", "3"));
  EXPECT_NE(settings("1f1b", "2"), settings("2bw", "2"));
  EXPECT_EQ(settings("2bw", "3"), settings("2bw", "2"));
  EXPECT_NE(settings("pipedream", "3"), settings("pipedream", "2"));
  EXPECT_NE(settings("pipedream-vsync", "3"), settings("pipedream-vsync", "2"));
  EXPECT_EQ(settings("2bw", "2").at("parallel.updates"), "10");  // of 20 steps, at most 16
}

TEST(ResultSettings, ChangeOnlyWithSettingsThatDetermineResults) {
  const auto plain = result_settings(parse(kSmall));
  EXPECT_EQ(plain.at("model.layers"), "2");
  for (const std::string assignment :
       {"memory.device=64MiB", "memory.place.weight=storage", "memory.chunk=4MiB",
        "memory.place.activation=storage", "memory.prefetch=7", "recompute.policy=unit",
        "checkpoint.every=3", "checkpoint.final=false", "log.dir=elsewhere",
        "optimizer.placement=next_forward", "train.order=unit", "train.threads=2",
        "train.batch=4"}) {
    EXPECT_EQ(result_settings(parse(kSmall, {assignment})), plain) << assignment;
  }
  for (const std::string assignment :
       {"model.hidden=128", "model.vocab=300", "train.seed=2", "train.steps=7", "train.seq=32",
        "optimizer.lr=0.5", "data.paths=x", "train.precision=fp32", "train.clip=2"}) {
    EXPECT_NE(result_settings(parse(kSmall, {assignment})), plain) << assignment;
  }
  const std::string constant = "optimizer.schedule=constant";
  EXPECT_EQ(result_settings(parse(kSmall, {constant})),
            result_settings(parse(kSmall, {constant, "train.steps=7"})));
}

// An asynchronous server belongs to its ranks and updates; servers in turn make one rank's steps.
TEST(ResultSettings, AnAsynchronousServerBelongsToItsRanks) {
  const auto with = [&](std::vector<std::string> more) {
    for (const char* setting : {"train.clip=0", "model.tie_embeddings=false", "train.steps=12"}) {
      more.emplace_back(setting);
    }
    return result_settings(parse(kSmall, more));
  };
  const std::string server = "parallel.server=true", asp = "parallel.server_mode=asp";
  EXPECT_NE(with({server, asp, "parallel.data=2"}), with({}));
  EXPECT_NE(with({server, asp, "parallel.data=2"}), with({server, asp, "parallel.data=3"}));
  EXPECT_NE(with({server, asp, "parallel.data=2", "parallel.updates=4"}),
            with({server, asp, "parallel.data=2", "parallel.updates=6"}));
  EXPECT_EQ(
      with({server, "parallel.server_mode=rotating", "parallel.data=2", "train.accumulate=4"}),
      with({"train.accumulate=4"}));
}

// PipeDream's versions follow the passes of a pipeline, 2BW's the updates.
TEST(ResultSettings, PipeDreamBelongsToItsPipelines) {
  const auto with = [&](const std::string& schedule, std::vector<std::string> more) {
    for (const char* setting : {"train.clip=0", "model.tie_embeddings=false", "train.steps=12",
                                "train.accumulate=8", "parallel.pipeline=2"}) {
      more.emplace(more.begin(), setting);
    }
    more.push_back("parallel.schedule=" + schedule);
    return result_settings(parse(kSmall, more));
  };
  for (const char* mesh : {"parallel.data=2", "parallel.pipeline=3"}) {
    EXPECT_NE(with("pipedream", {mesh}), with("pipedream", {}));
    EXPECT_NE(with("pipedream-vsync", {mesh}), with("pipedream-vsync", {}));
    EXPECT_EQ(with("2bw", {mesh}), with("2bw", {}));
  }
}

// Sums around a ring have the bits of one number of ranks; all other ways to divide a step among
// ranks have those of one.
TEST(ResultSettings, OnlyARingBelongsToItsNumberOfRanks) {
  const std::vector<std::string> step{"train.accumulate=8"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), step.begin(), step.end());
    return result_settings(parse(kSmall, more));
  };
  const std::string ring = "parallel.reduction=ring";
  for (const std::vector<std::string>& same : {std::vector<std::string>{"parallel.data=4"},
                                               {"parallel.data=2", "parallel.zero=3"},
                                               {"parallel.data=2", "parallel.server=true"},
                                               {ring, "parallel.data=1"}}) {
    EXPECT_EQ(with(same), with({}));
  }
  EXPECT_NE(with({ring, "parallel.data=2"}), with({"parallel.data=2"}));
  EXPECT_NE(with({ring, "parallel.data=2"}), with({ring, "parallel.data=4"}));
  EXPECT_EQ(with({ring, "parallel.data=2", "parallel.bucket=64KiB"}),
            with({ring, "parallel.data=2"}));
  const std::vector<std::string> groups{"train.fold_groups=4", "parallel.data=4"};
  std::vector<std::string> nodes = groups;
  nodes.emplace_back("parallel.node_ranks=2");
  EXPECT_EQ(with(nodes), with(groups));
}

// Keys that the rule, or the precision, does not read refuse no resume.
TEST(ResultSettings, HoldTheKeysThatAreRead) {
  const std::string adamw = "optimizer.name=adamw", bf16 = "train.precision=bf16",
                    fp16 = "train.precision=fp16";
  for (const auto& [reader, key, other] :
       {std::array<std::string, 3>{"optimizer.name=sgd", "optimizer.momentum=0.5", adamw},
        {"optimizer.name=muon", "optimizer.momentum=0.5", adamw},
        {"optimizer.name=adafactor", "optimizer.beta2_decay=-0.5", adamw},
        {"optimizer.name=adafactor", "optimizer.clip_threshold=2", adamw},
        {fp16, "train.loss_scaling=static", bf16},
        {fp16, "train.loss_scale=1024", bf16},
        {fp16, "train.loss_scale_window=7", bf16}}) {
    EXPECT_EQ(result_settings(parse(kSmall, {key, other})), result_settings(parse(kSmall))) << key;
    EXPECT_NE(result_settings(parse(kSmall, {reader, key})),
              result_settings(parse(kSmall, {reader})))
        << key;
  }
  EXPECT_EQ(result_settings(parse(kSmall, {fp16, "train.loss_scale_patience=3"})),
            result_settings(parse(kSmall, {fp16})));
  const std::string fixed = "train.loss_scaling=static";
  EXPECT_EQ(result_settings(parse(kSmall, {fp16, "train.loss_scale_window=7", fixed})),
            result_settings(parse(kSmall, {fp16, fixed})));
}

}  // namespace
}  // namespace sluice::config
