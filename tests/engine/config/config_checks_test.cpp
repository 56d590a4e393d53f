// Values that are in their ranges and do not go together.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "engine/config/config.hpp"
#include "engine/config/schema.hpp"
#include "tests/engine/config/small_config.hpp"

namespace sluice::config {
namespace {

TEST(Config, StorageSharesAreOneNumberForEachPath) {
  const std::string two = "memory.storage_paths=x,y";
  EXPECT_TRUE(parse(kSmall).memory.storage_shares.empty());
  EXPECT_EQ(parse(kSmall, {two, "memory.storage_shares=3,1.5"}).memory.storage_shares,
            (std::vector<double>{3, 1.5}));
  EXPECT_EQ(parse(kSmall + "[memory]\nstorage_paths = [\"x\", \"y\"]\nstorage_shares = [2, 1]\n")
                .memory.storage_shares,
            (std::vector<double>{2, 1}));
  std::string many = "memory.storage_paths=p0";
  for (int i = 1; i <= 512; ++i) many += ",p" + std::to_string(i);
  parse(kSmall, {two, "memory.storage_shares=4095,1"});
  expect_refusals({
      {{many}, "at most 512"},
      {{two, "memory.storage_shares=1,2,3"}, "give one for each"},
      {{two, "memory.storage_shares=1,4096"},
       "memory.storage_shares gives a path less than 1/4096"},
      {{two, "memory.storage_shares=1,4096"}, "of 2 paths is 4095 to 1"},
      {{two, "memory.storage_shares=1,0"}, "memory.storage_shares"},
      {{two, "memory.storage_shares=1,-1"}, "memory.storage_shares"},
      {{two, "memory.storage_shares=1,nan"}, "memory.storage_shares"},
      {{two, "memory.storage_shares=1,x"}, "memory.storage_shares"},
  });
}

TEST(Config, AStoragePathStandsOnce) {
  EXPECT_TRUE(holds(refusal(kSmall, {"memory.storage_paths=a,b,./a/"}), "names './a/' twice"));
  EXPECT_EQ(parse(kSmall, {"memory.storage_paths=a,b,a/c"}).memory.storage_paths.size(), 3u);
}

// Each key is in its range; their product is not.
TEST(Config, AModelThatCannotBePlannedIsRefusedBeforeItIsDescribed) {
  for (const std::string hidden : {"16384", "262144"}) {
    const std::string words = refusal(kSmall, {"model.layers=4096", "model.hidden=" + hidden});
    EXPECT_TRUE(holds(words, "model.layers"));
    EXPECT_TRUE(holds(words, "at most 10000 billion"));
  }
  EXPECT_NO_THROW(parse(kSmall, {"model.layers=96", "model.hidden=8192"}));
}

TEST(Config, ValuesThatDisagreeAreRefused) {
  EXPECT_EQ(refusal(kSmall, {"model.heads=3"}),
            "--set model.heads=3: model.heads is 3, which must divide model.hidden, 64");
  expect_refusals({
      {{"model.kv_heads=3"}, "divide model.heads, 4"},
      {{"model.family=llama", "model.heads=64"}, "even"},
      {{"train.seq=64", "model.max_seq=32"}, "at most model.max_seq, 32"},
      {{"train.eval_every=5"}, "data.eval_fraction"},
      {{"train.accumulate=4", "train.fold_groups=3"}, "divide"},
      {{"train.seq=1048576", "train.micro_batch=8"}, "4194304"},
      {{"train.steps=1000000000000", "train.accumulate=1048576"}, "tokens of the run"},
      {{"memory.storage_sqpoll=true", "memory.storage_engine=posix"},
       "memory.storage_sqpoll is io_uring's"},
      {{"memory.link_bandwidth=1e-300"}, "memory.link_bandwidth is less than 1 MB/s"},
      {{"memory.link_bandwidth=999999"}, "memory.link_bandwidth is less than 1 MB/s"},
      {{"memory.backend=host", "parallel.transport=nccl"},
       "parallel.transport says how the memory of GPUs travels"},
      {{"train.loss_scale=1000"},
       "train.loss_scale is 1000, which must be a power of two, such as 512"},
  });
  for (const std::string scale : {"1", "65536", "4294967296"}) {
    EXPECT_NO_THROW(parse(kSmall, {"train.precision=fp16", "train.loss_scale=" + scale}));
  }
  EXPECT_TRUE(parse(kSmall, {"memory.storage_sqpoll=true"}).memory.storage_sqpoll);
  EXPECT_EQ(refusal("[model]\nlayers = 1\nhidden = 8\n"),
            "run.toml: model.heads is missing; it must be an integer from 1 to 16384");
}

// train.batch, micro_batch and accumulate as parsed.
std::array<std::int64_t, 3> batch_of(const std::vector<std::string>& overrides) {
  const Config config = parse(kSmall, overrides);
  return {config.train.batch, config.train.micro_batch, config.train.accumulate};
}

TEST(Config, TwoKeysOfTheBatchGiveTheThird) {
  using Batch = std::array<std::int64_t, 3>;
  EXPECT_EQ(batch_of({}), (Batch{0, 4, 1}));
  EXPECT_EQ(batch_of({"train.batch=12"}), (Batch{12, 4, 3}));
  EXPECT_EQ(batch_of({"train.batch=12", "train.micro_batch=6"}), (Batch{12, 6, 2}));
  EXPECT_EQ(batch_of({"train.batch=12", "train.accumulate=6"}), (Batch{12, 2, 6}));
  EXPECT_EQ(batch_of({"train.batch=12", "train.accumulate=auto", "train.micro_batch=2"}),
            (Batch{12, 2, 6}));
  EXPECT_EQ(batch_of({"train.batch=12", "train.accumulate=6", "train.micro_batch=2"}),
            (Batch{12, 2, 6}));
  // Nothing but the name leaves the choice to the planner.
  EXPECT_EQ(batch_of({"train.batch=12", "train.micro_batch=auto"}), (Batch{12, 0, 0}));
  const Config open = parse(kSmall, {"train.batch=12", "train.micro_batch=auto"});
  EXPECT_EQ(config_to_toml(parse(config_to_toml(open))), config_to_toml(open));
}

TEST(Config, ABatchThatContradictsItsPartsIsRefused) {
  EXPECT_EQ(refusal(kSmall, {"train.micro_batch=auto"}),
            "--set train.micro_batch=auto: train.micro_batch = \"auto\" needs train.batch, the "
            "samples of a step, such as train.batch = 16");
  EXPECT_EQ(refusal(kSmall, {"train.batch=12", "train.micro_batch=4", "train.accumulate=2"}),
            "--set train.batch=12: train.batch is 12, and train.micro_batch * train.accumulate is "
            "4 * 2; leave one of the three out");
  expect_refusals({
      {{"train.batch=6"},
       "train.batch is 6, which must be a multiple of train.micro_batch, 4 by default; give "
       "train.micro_batch a divisor of 6, or \"auto\", or give train.accumulate"},
      {{"train.batch=6", "train.micro_batch=4"}, "a multiple of train.micro_batch, 4"},
      {{"train.batch=6", "train.accumulate=4"}, "must be a multiple of train.accumulate, 4"},
      {{"train.batch=12", "train.micro_batch=auto", "train.accumulate=3"},
       "train.accumulate is 3, and train.micro_batch = \"auto\" leaves it to the planner"},
      {{"train.accumulate=auto"}, "train.accumulate = \"auto\" needs train.batch"},
      {{"train.micro_batch=0"}, "must be \"auto\" or an integer from 1 to 1048576"},
      {{"train.micro_batch=none"}, "must be \"auto\" or an integer"},
      {{"train.batch=1048576", "train.accumulate=1", "train.seq=8"}, "4194304"},
  });
}

TEST(Config, AnOptimizerRefusesStatesThatItCannotKeep) {
  expect_refusals({
      {{"optimizer.states=split", "train.precision=fp32"}, R"(needs train.precision = "bf16")"},
      {{"optimizer.name=adafactor", "optimizer.moments=8bit"},
       R"(leave optimizer.moments at "fp32")"},
      {{"optimizer.name=sgd", "optimizer.momentum=0", "optimizer.moments=bf16"},
       "without momentum keeps no moment"},
      {{"optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"},
       "optimizer.nesterov needs an optimizer.momentum above 0"},
  });
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion"}).optimizer.beta2, 0.99);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion", "optimizer.betas=0.9,0.5"}).optimizer.beta2, 0.5);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=muon"}).optimizer.momentum, 0.95);
}

// Units that are recomputed save nothing between their passes.
TEST(Config, PlacesOfSavedPartsAreRefusedWhereUnitsAreRecomputed) {
  const std::string unit = "recompute.policy=unit";
  for (const std::string part : {"qkv", "*"}) {
    EXPECT_TRUE(holds(refusal(kSmall, {unit, "memory.place.saved." + part + "=pinned"}),
                      "memory.place.saved." + part + " has no meaning with recompute.policy = "));
  }
  // The entry's own origin, even if other keys of the table were set since.
  const std::string file = kSmall + "[memory.place.saved]\nmlp_up = \"pinned\"\n";
  const std::string innocent = "memory.place.saved.qkv=auto";
  EXPECT_EQ(refusal(file, {unit, innocent}).rfind("run.toml:", 0), 0u);
  const std::string given = "memory.place.saved.mlp_up=pinned";
  EXPECT_EQ(refusal(kSmall, {given, unit, innocent}).rfind("--set " + given + ": ", 0), 0u);
  parse(kSmall, {unit, "memory.place.saved.qkv=auto"});
  parse(kSmall, {"recompute.policy=auto", "memory.place.saved.qkv=pinned"});
}

TEST(Config, AnUpdateInTheBackwardPassMayNotDependOnTheNorm) {
  const std::string in_backward = "optimizer.placement=in_backward";
  expect_refusals({{{in_backward}, "needs train.clip = 0"},
                   {{in_backward, "train.clip=0", "train.precision=fp16"},
                    R"(needs train.precision = "bf16" or "fp32")"}});
  EXPECT_NO_THROW(check_supported(parse(kSmall, {in_backward, "train.clip=0"})));
}

TEST(Config, ASpeculativeUpdateMayDependOnTheNormButNotOnACommit) {
  const std::string speculative = "optimizer.placement=speculative";
  EXPECT_NO_THROW(check_supported(parse(kSmall, {speculative, "train.precision=fp16"})));
  expect_refusals({{{speculative, "checkpoint.mode=durable"},
                    R"("speculative" needs checkpoint.mode = "scratch")"}});
}

// Another value of each key that the rules differ in, the rules that read it, and each rule.
TEST(Config, KeysOfOtherOptimizersAndPrecisionsAreRefused) {
  struct Row {
    std::string setting, other;
    std::vector<std::string> readers;
  };
  const std::vector<std::string> rules = find_config_key("optimizer.name")->choices;
  const std::vector<std::string> precisions = find_config_key("train.precision")->choices;
  const std::vector<Row> rows{
      {"optimizer.betas=0.5,0.6", "optimizer.name", {"adamw", "adam", "lion", "sm3", "muon"}},
      {"optimizer.eps=1e-06", "optimizer.name", {"adamw", "adam", "muon"}},
      {"optimizer.momentum=0.5", "optimizer.name", {"sgd", "muon"}},
      {"optimizer.nesterov=true", "optimizer.name", {"sgd"}},
      {"optimizer.beta2_decay=-0.5", "optimizer.name", {"adafactor"}},
      {"optimizer.clip_threshold=2", "optimizer.name", {"adafactor"}},
      {"train.loss_scaling=static", "train.precision", {"fp16"}},
      {"train.loss_scale=1024", "train.precision", {"fp16"}},
      {"train.loss_scale_window=7", "train.precision", {"fp16"}},
      {"train.loss_scale_patience=3", "train.precision", {"fp16"}}};
  for (const Row& row : rows) {
    const std::string key = row.setting.substr(0, row.setting.find('='));
    for (const std::string& choice : row.other == "optimizer.name" ? rules : precisions) {
      SCOPED_TRACE(row.setting + " with " + choice);
      const std::string beside = row.other + "=" + choice;
      if (std::ranges::find(row.readers, choice) != row.readers.end()) {
        EXPECT_NO_THROW(parse(kSmall, {beside, row.setting}));
        continue;
      }
      const std::string words = refusal(kSmall, {beside, row.setting});
      EXPECT_TRUE(holds(words, "--set " + row.setting + ": " + key + " = ")) << words;
      EXPECT_TRUE(holds(words, " has no meaning with " + row.other + " = \"" + choice +
                                   "\"; leave it out, or use \"" + row.readers.front() + "\""))
          << words;
      // A later override rests the key; the configuration that is written leaves it out.
      const Config resting = parse(kSmall, {row.setting, beside});
      EXPECT_EQ(config_to_toml(parse(config_to_toml(resting))),
                config_to_toml(parse(kSmall, {beside})));
      // A key at its default is no wish.
      const ConfigKey& same = *find_config_key(key);
      const std::string standard = format_value(same, same.read(Config()));
      EXPECT_NO_THROW(parse(kSmall + "[" + key.substr(0, key.find('.')) + "]\n" +
                                key.substr(key.find('.') + 1) + " = " + standard + "\n",
                            {beside}));
    }
  }
  EXPECT_TRUE(
      holds(refusal(kSmall + "[optimizer]\nmomentum = 0.5\n"),
            "run.toml:6: optimizer.momentum = 0.5 has no meaning with optimizer.name = \"adamw\"; "
            "leave it out, or use \"sgd\" or \"muon\""));
  expect_refusals(
      {{{"train.precision=fp16", "train.loss_scaling=static", "train.loss_scale_window=7"},
        "has no meaning with train.loss_scaling = \"static\"; leave it out, or use "
        "\"dynamic\""}});
}

}  // namespace
}  // namespace sluice::config
