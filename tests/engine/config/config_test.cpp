// 860 lines because one table of keys has one suite.
#include "engine/config/config.hpp"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "engine/config/schema.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::config {
namespace {

using testing::holds;

const std::string kSmall = "[model]\nlayers = 2\nhidden = 64\nheads = 4\n";

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "run.toml", overrides);
}
std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return testing::message_of<InputError>([&] { parse(text, overrides); });
}

// Overrides of kSmall, and a part of the sentence that refuses them.
using Refusals = std::vector<std::pair<std::vector<std::string>, std::string>>;
void expect_refusals(const Refusals& rows) {
  for (const auto& [overrides, words] : rows) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    EXPECT_TRUE(holds(refusal(kSmall, overrides), words));
  }
}
// The same for texts behind kSmall.
void expect_texts_refused(const std::vector<std::pair<std::string, std::string>>& rows) {
  for (const auto& [text, words] : rows) EXPECT_TRUE(holds(refusal(kSmall + text), words));
}

TEST(Config, FillsInDefaults) {
  const Config gpt2 = parse(kSmall + "[train]\nseq = 128\n");
  EXPECT_EQ(gpt2.model.kv_heads, 4);
  EXPECT_EQ(gpt2.model.ffn, 256);
  EXPECT_EQ(gpt2.model.vocab, 256);
  EXPECT_EQ(gpt2.model.max_seq, 128);
  EXPECT_TRUE(gpt2.model.tie_embeddings);
  EXPECT_EQ(gpt2.memory.storage_paths, std::vector<std::string>{"runs/default/storage"});
  EXPECT_EQ(gpt2.checkpoint.dir, "runs/default/checkpoints");

  const Config llama = parse(kSmall + "family = \"llama\"\n");
  EXPECT_EQ(llama.model.ffn, 192);  // 8/3 * 64 = 170.7, up to a multiple of 64
  EXPECT_FALSE(llama.model.tie_embeddings);
}

TEST(Config, ReadsEveryKindOfValue) {
  const Config config =
      parse(kSmall +
                "[data]\npaths = [\"a\", \"b\"]\n[optimizer]\nbetas = [0, 0.5]\nlr = 1\n"
                "[memory]\ndevice = \"1.5GiB\"\npinned = 4096\nlink_latency = \"10us\"\n"
                "link_bandwidth = \"16GiB/s\"\nplace.weight = \"pinned\"\n",
            {"memory.chunk=4MiB", "model.tie_embeddings=false", "memory.storage_paths=x,y",
             "train.clip=0.5"});
  EXPECT_EQ(config.data.paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.optimizer.beta1, 0.0);
  EXPECT_EQ(config.optimizer.beta2, 0.5);
  EXPECT_EQ(config.memory.device_bytes, 3 * kGiB / 2);
  EXPECT_EQ(config.memory.pinned_bytes, 4096u);
  EXPECT_DOUBLE_EQ(config.memory.link_latency_s, 1e-5);
  EXPECT_EQ(config.memory.link_bandwidth_bytes_per_s, 16.0 * kGiB);
  EXPECT_EQ(config.memory.place.weight, Config::Place::kPinned);
  EXPECT_EQ(config.memory.chunk_bytes, 4 * kMiB);
  EXPECT_FALSE(config.model.tie_embeddings);
  EXPECT_EQ(config.memory.storage_paths, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.train.clip, 0.5);
}

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

TEST(Config, AnOverrideMayKeepTheQuotesOfAFile) {
  EXPECT_EQ(parse(kSmall, {"log.dir=first", "log.dir=\"a run\""}).log.dir, "a run");
  EXPECT_EQ(parse(kSmall, {"log.dir='b'"}).log.dir, "b");
  EXPECT_EQ(parse(kSmall, {"log.dir=c\""}).log.dir, "c\"");
  EXPECT_EQ(parse(kSmall, {"memory.device=\"64MiB\""}).memory.device_bytes, 64 * kMiB);
  EXPECT_EQ(parse(kSmall, {"data.paths=\"a\",\"b\""}).data.paths,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(holds(refusal(kSmall, {"train.steps=\"5\""}), "must be an integer"));
  EXPECT_EQ(parse(kSmall, {"recompute.policy=\"unit\""}).recompute.policy,
            Config::Recompute::kUnit);
}

TEST(Config, AStoragePathStandsOnce) {
  EXPECT_TRUE(holds(refusal(kSmall, {"memory.storage_paths=a,b,./a/"}), "names './a/' twice"));
  EXPECT_EQ(parse(kSmall, {"memory.storage_paths=a,b,a/c"}).memory.storage_paths.size(), 3u);
}

TEST(Config, AnUnknownKeyNamesTheNearestKnownOne) {
  EXPECT_EQ(refusal(kSmall + "[memory]\n\ndevise = \"1GiB\"\n"),
            "run.toml:7: unknown key 'memory.devise'; did you mean 'memory.device'?");
  EXPECT_EQ(refusal(kSmall + "[memroy]\ndevice = 1\n"),
            "run.toml:6: unknown key 'memroy.device'; did you mean 'memory.device'?");
  EXPECT_EQ(refusal(kSmall, {"train.lr=1"}),
            "--set train.lr=1: unknown key 'train.lr'; did you mean 'optimizer.lr'?");
  EXPECT_EQ(refusal(kSmall + "[memory.place]\nweights = \"pinned\"\n"),
            "run.toml:6: unknown key 'memory.place.weights'; did you mean 'memory.place.weight'?");
  for (const std::string far : {"weather", "x.y", "memory.accelerator", "a.b.c.d.e.f.g"}) {
    EXPECT_TRUE(holds(refusal(kSmall, {far + "=1"}),
                      "unknown key '" + far + "'; sluice --help-config lists all keys"));
  }
}

TEST(Config, AMistypedValueNamesTheKeyTheValueAndTheRightType) {
  EXPECT_EQ(refusal("[model]\nlayers = \"two\"\n"),
            "run.toml:2: model.layers must be an integer from 1 to 4096; got \"two\"");
  EXPECT_EQ(
      refusal(kSmall + "[memory]\ndevice = \"lots\"\n"),
      "run.toml:6: memory.device must be \"auto\" or a byte count such as \"64MiB\", from 0 to "
      "1024TiB; got \"lots\"");
  EXPECT_EQ(
      refusal(kSmall, {"recompute.policy=all"}),
      "--set recompute.policy=all: recompute.policy must be \"none\", \"unit\", "
      "\"selective\", \"attention\", \"every:K\", \"sqrt\" or \"auto\" with K from 1 to 4096; got "
      "\"all\"");
  for (const std::string count : {"K", "0", "4097", "", "2x", "-1"}) {
    const std::string words = refusal(kSmall, {"recompute.policy=every:" + count});
    EXPECT_NE(words.find("recompute.policy must be"), std::string::npos) << count;
  }
  EXPECT_EQ(refusal("memory = 3\n"), "run.toml:1: memory is a section, written [memory]; got 3");
  EXPECT_TRUE(holds(refusal(kSmall + "[train]\nsteps = 1.5\n"), "got 1.5"));
}

// Each key is in its range; their product is not.
TEST(Config, APolicyWithACountComesBackTheSame) {
  const Config config = parse(kSmall, {"recompute.policy=every:12"});
  EXPECT_EQ(config.recompute.policy, Config::Recompute::kEvery);
  EXPECT_EQ(config.recompute.every, 12);
  const ConfigKey* key = find_config_key("recompute.policy");
  EXPECT_EQ(std::get<std::string>(key->read(config)), "every:12");
}

TEST(Config, AModelThatCannotBePlannedIsRefusedBeforeItIsDescribed) {
  for (const std::string hidden : {"16384", "262144"}) {
    const std::string words = refusal(kSmall, {"model.layers=4096", "model.hidden=" + hidden});
    EXPECT_TRUE(holds(words, "model.layers"));
    EXPECT_TRUE(holds(words, "at most 10000 billion"));
  }
  EXPECT_NO_THROW(parse(kSmall, {"model.layers=96", "model.hidden=8192"}));
}

TEST(Config, RangesAreKept) {
  for (const std::string assignment : {"model.layers=0",
                                       "model.layers=4097",
                                       "memory.chunk=3MiB",
                                       "memory.chunk=0",
                                       "memory.device=-1",
                                       "optimizer.betas=0.9,1.0",
                                       "optimizer.betas=0.9",
                                       "optimizer.eps=0",
                                       "optimizer.eps=1e-60",
                                       "optimizer.lr=nan",
                                       "train.clip=inf",
                                       "data.eval_fraction=1",
                                       "train.seed=-1",
                                       "train.seed=99999999999999999999",
                                       "train.steps=-1",
                                       "parallel.zero=4",
                                       "memory.link_latency=2s",
                                       "log.every=0",
                                       "memory.storage_paths=a,,b",
                                       "train.loss_scale=0",
                                       "train.loss_scale=8589934592",
                                       "train.loss_scale=dynamic",
                                       "train.loss_scaling=off",
                                       "train.loss_scale_window=0",
                                       "train.loss_scale_patience=0"}) {
    EXPECT_TRUE(holds(refusal(kSmall, {assignment}), " must be ")) << assignment;
  }
  EXPECT_EQ(refusal(kSmall + "[log]\nevery = 0\n"),
            "run.toml:6: log.every must be an integer from 1 to 1000000000000; got 0");
  expect_texts_refused({{"[memory]\nchunk = \"3MiB\"\n", "a multiple of 2MiB"},
                        {"[optimizer]\nbetas = [0.9]\n", "got a list of 1 values"}});
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
    EXPECT_NO_THROW(parse(kSmall, {"train.loss_scale=" + scale}));
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
      {{"optimizer.nesterov=true"}, R"("sgd" with a momentum)"},
  });
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion"}).optimizer.beta2, 0.99);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion", "optimizer.betas=0.9,0.5"}).optimizer.beta2, 0.5);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=muon"}).optimizer.momentum, 0.95);
}

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

TEST(Config, ParameterGroupsAreTables) {
  const std::string file = kSmall +
                           "[[optimizer.groups]]\nmatch = \"*.bias\"\nlr_scale = 2\n"
                           "[[optimizer.groups]]\nmatch = \"blocks.0.*\"\nweight_decay = 0.0\n";
  const Config config = parse(file);
  const std::vector<model::ParameterGroup> wanted{{"*.bias", 2.0, {}}, {"blocks.0.*", 1.0, 0.0}};
  EXPECT_EQ(config.optimizer.groups, wanted);
  EXPECT_EQ(parse(config_to_toml(config)).optimizer.groups, wanted);
  EXPECT_EQ(parse(kSmall, {"optimizer.groups=[{match=\"*.bias\",lr_scale=2.0},"
                           "{match=\"blocks.0.*\",weight_decay=0.0}]"})
                .optimizer.groups,
            wanted);
  const auto json = nlohmann::json::parse(config_to_json(config));
  EXPECT_EQ(json["optimizer"]["groups"][0]["match"], "*.bias");
  EXPECT_FALSE(json["optimizer"]["groups"][0].contains("weight_decay"));
  EXPECT_NE(result_settings(config), result_settings(parse(kSmall)));
  for (const std::string bad :
       {"[{lr_scale=2.0}]", "[{match=\"a\",lr_scale=-1.0}]", "[{match=\"a\",rate=1.0}]", "[1]",
        "{match=\"a\"}", "[{match=\"a\",weight_decay=nan}]", "[] \nx = 1", "["}) {
    EXPECT_TRUE(holds(refusal(kSmall, {"optimizer.groups=" + bad}),
                      "optimizer.groups must be a list of tables such as"));
  }
}

TEST(Config, PlacesOfSavedPartsAreATable) {
  using Place = Config::Place;
  const std::map<std::string, Place> wanted{{"*", Place::kDevice}, {"mlp_hidden", Place::kStorage}};
  const auto saved = [](const Config& config) { return config.memory.place.saved; };
  const Config config =
      parse(kSmall + "[memory.place]\nsaved = { mlp_hidden = \"storage\", \"*\" = \"device\" }\n");
  EXPECT_EQ(saved(config), wanted);
  EXPECT_EQ(saved(parse(config_to_toml(config))), wanted);
  EXPECT_TRUE(saved(parse(config_to_toml(parse(kSmall)))).empty());
  EXPECT_EQ(saved(parse(kSmall, {"memory.place.saved={mlp_hidden='storage','*'='device'}"})),
            wanted);
  const auto json = nlohmann::json::parse(config_to_json(config));
  EXPECT_EQ(json["memory"]["place"]["saved"]["mlp_hidden"], "storage");
  EXPECT_EQ(result_settings(config), result_settings(parse(kSmall)));
  expect_refusals({{{"memory.place.saved='storage'"}, "memory.place.saved must be a table such as"},
                   {{"memory.place.saved={"}, "memory.place.saved must be a table such as"}});
}

TEST(Config, AnEntryOfTheTableOfPlacesIsSetAlone) {
  using Place = Config::Place;
  const std::string file = kSmall + "[memory.place.saved]\nmlp_up = \"pinned\"\nqkv = \"device\"\n";
  const std::map<std::string, Place> wanted{
      {"*", Place::kDevice}, {"mlp_up", Place::kPinned}, {"qkv", Place::kStorage}};
  for (const std::string all : {"*", "\"*\""}) {
    EXPECT_EQ(
        parse(file, {"memory.place.saved.qkv=storage", "memory.place.saved." + all + "=\"device\""})
            .memory.place.saved,
        wanted);
  }
}

TEST(Config, APlaceOrANameOfASavedPartThatIsNoneIsRefusedAsThat) {
  const std::string choices =
      R"(memory.place.saved.qkv must be "auto", "device", "pinned" or "storage"; got )";
  expect_refusals({{{"memory.place.saved.qkv=disk"}, choices + "\"disk\""},
                   {{"memory.place.saved={mlp_up='device',qkv='disk'}"}, choices + "\"disk\""},
                   {{"memory.place.saved={qkv=1}"}, choices + "1"}});
  expect_texts_refused({{"[memory.place.saved]\nqkv = \"disk\"\n", choices + "\"disk\""}});
  const std::string words = "memory.place.saved has an entry whose name is empty; name a part";
  for (const std::string entry : {".\"\"=pinned", ".=pinned", "={''='pinned'}", "={''=1}"}) {
    const std::string sentence = refusal(kSmall, {"memory.place.saved" + entry});
    EXPECT_EQ(sentence.rfind("--set memory.place.saved" + entry + ": " + words, 0), 0u) << sentence;
  }
  expect_texts_refused({{"[memory.place.saved]\n\"\" = \"pinned\"\n", words}});
}

// A name is a user's text: it is shown as one line, cut where it is long.
TEST(Config, ANameOfAPartIsShownOnOneLine) {
  const std::string unit = "recompute.policy=unit";
  const std::string long_name(3000, 'q');
  for (const std::string& sentence :
       {refusal(kSmall, {unit, "memory.place.saved.a\nb=pinned"}),
        refusal(kSmall + "[memory.place.saved]\n\"a\\nb\" = \"pinned\"\n", {unit}),
        refusal(kSmall, {unit, "memory.place.saved." + long_name + "=pinned"})}) {
    EXPECT_TRUE(holds(sentence, "has no meaning with recompute.policy"));
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    EXPECT_LT(sentence.size(), 500u) << sentence;
  }
}

// Units that are made again save nothing between their passes.
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

TEST(Config, BrokenTomlNamesTheLine) {
  EXPECT_EQ(refusal("[model]\nlayers = = 2\n").rfind("run.toml:2: not valid TOML: ", 0), 0u);
  EXPECT_TRUE(holds(refusal("[model]\nlayers = 2\nlayers = 3\n"), "run.toml:3"));
  expect_refusals({{{"no equals sign"}, "write key=value"}, {{"=1GiB"}, "write key=value"}});
  EXPECT_EQ(refusal(std::string(2 << 20, '#')).rfind("run.toml has 2097152 bytes", 0), 0u);
  // Deep nesting must end in a refusal, not in a stack overflow.
  EXPECT_FALSE(refusal("x = " + std::string(100000, '[')).empty());
}

TEST(Config, TheDumpReadsBackToTheSameConfiguration) {
  const Config config =
      parse(kSmall, {"data.paths=we\"ird\\na\tme,b", "optimizer.lr=0.1", "memory.device=96MiB",
                     "memory.link_latency=3us", "checkpoint.mode=durable", "train.precision=fp16"});
  const std::string text = config_to_toml(config);
  const Config again = parse(text);
  EXPECT_EQ(config_to_toml(again), text);
  EXPECT_EQ(again.data.paths, config.data.paths);
  EXPECT_EQ(again.optimizer.lr, 0.1);
  EXPECT_EQ(again.memory.link_latency_s, config.memory.link_latency_s);
  const auto json = nlohmann::json::parse(config_to_json(config));
  EXPECT_EQ(json["memory"]["device"], 96 * kMiB);
  EXPECT_EQ(json["memory"]["place"]["weight"], "auto");
  EXPECT_EQ(json["optimizer"]["betas"][1], 0.95);
}

TEST(Config, EveryKeyIsListedOnceAndCanBeSetToItsOwnValue) {
  std::set<std::string> paths;
  const Config config = parse(kSmall);
  for (const ConfigKey& key : config_schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_TRUE(in_range(key, key.read(config))) << key.path;
    Config other = config;
    key.assign(other, key.read(config));
    EXPECT_EQ(config_to_toml(other), config_to_toml(config)) << key.path;
  }
}

TEST(Config, EachChoiceComesBackAsItWasWritten) {
  for (const ConfigKey& key : config_schema()) {
    if (key.kind != ConfigKind::kChoice) continue;  // a table's choices are of its values
    for (const std::string& choice : key.choices) {
      // See APolicyWithACountComesBackTheSame and AScheduleFromAFileComesBackTheSame.
      if (choice.ends_with(":K") || choice.ends_with(":FILE")) continue;
      Config config;
      key.assign(config, ConfigValue(choice));
      EXPECT_EQ(std::get<std::string>(key.read(config)), choice) << key.path;
    }
  }
  Config config;
  find_config_key("optimizer.placement")->assign(config, ConfigValue(std::string("speculative")));
  EXPECT_EQ(config.optimizer.placement, Config::OptimizerPlacement::kSpeculative);
}

TEST(Config, SettingsNotYetBuiltAreRefusedByName) {
  EXPECT_NO_THROW(check_supported(parse(kSmall)));
  for (const std::string assignment : {"data.format=megatron", "model.from=somewhere",
                                       "train.reduction=sequential", "parallel.tensor_mode=2.5d"}) {
    const Config config = parse(kSmall, {"train.accumulate=2", assignment});
    const std::string words = testing::message_of<InputError>([&] { check_supported(config); });
    const std::string path = assignment.substr(0, assignment.find('='));
    EXPECT_EQ(words.rfind(path, 0), 0u) << words;
    EXPECT_TRUE(holds(config_help(), "not in this version: " + path + " "));
    EXPECT_TRUE(holds(words, "is not available in this version"));
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

TEST(ResultSettings, ChangeOnlyWithSettingsThatDetermineResults) {
  const auto plain = result_settings(parse(kSmall));
  EXPECT_EQ(plain.at("model.layers"), "2");
  for (const std::string assignment :
       {"memory.device=64MiB", "memory.place.weight=storage", "memory.chunk=4MiB",
        "memory.place.activation=storage", "memory.prefetch=7", "recompute.policy=unit",
        "checkpoint.every=3", "checkpoint.final=false", "log.dir=elsewhere",
        "optimizer.placement=next_forward", "train.order=unit", "train.threads=2",
        "train.loss_scale_patience=3", "train.batch=4"}) {
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

// A value that was derived follows the keys that it comes from, also where the dump is read with
// overrides; one that determines the result stays.
TEST(Config, DerivedValuesOfADumpFollowOverrides) {
  const auto again = [](const std::vector<std::string>& first,
                        const std::vector<std::string>& then) {
    return parse(config_to_toml(parse(kSmall, first)), then);
  };
  const std::vector<std::string> v{"parallel.pipeline=2", "parallel.schedule=zb-v"};
  EXPECT_EQ(again(v, {}).parallel.virtual_stages, 2);
  for (const auto& [schedule, stages] :
       {std::pair("1f1b", 1), {"gpipe", 1}, {"interleaved", 2}, {"zb-v", 2}}) {
    EXPECT_EQ(again(v, {std::string("parallel.schedule=") + schedule}).parallel.virtual_stages,
              stages);
  }
  std::vector<std::string> given = v;
  given[1] = "parallel.schedule=interleaved";
  given.emplace_back("parallel.virtual_stages=3");
  EXPECT_EQ(again(given, {"parallel.schedule=vertical"}).parallel.virtual_stages, 3);
  const std::vector<std::string> delays{"train.clip=0",         "model.tie_embeddings=false",
                                        "train.steps=12",       "train.accumulate=12",
                                        "parallel.server=true", "parallel.data=2"};
  std::vector<std::string> rotating = delays;
  rotating.emplace_back("parallel.server_mode=rotating");
  EXPECT_EQ(again(rotating, {}).parallel.updates, 12);
  EXPECT_EQ(again(rotating, {"parallel.data=4"}).parallel.updates, 12);
  EXPECT_EQ(
      again(rotating, {"parallel.data=1", "parallel.server=false", "parallel.server_mode=bsp"})
          .parallel.updates,
      1);
  std::vector<std::string> pinned{"train.clip=0",       "model.tie_embeddings=false",
                                  "train.steps=8",      "parallel.pipeline=2",
                                  "train.accumulate=4", "parallel.schedule=2bw"};
  EXPECT_EQ(again(pinned, {"train.steps=16"}).parallel.updates, 8);
  EXPECT_EQ(again({"log.dir=a"}, {}).memory.storage_paths, std::vector<std::string>{"a/storage"});
}

// Sums around a ring have the bits of one number of ranks; all other ways to divide a step among ranks
// have those of one.
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

// Keys that the rule, or the precision, does not read refuse no resume.
TEST(ResultSettings, HoldTheKeysThatAreRead) {
  const std::string fp16 = "train.precision=fp16";
  for (const auto& [reader, key] :
       {std::pair<std::string, std::string>{"optimizer.name=sgd", "optimizer.momentum=0.5"},
        {"optimizer.name=muon", "optimizer.momentum=0.5"},
        {"optimizer.name=adafactor", "optimizer.beta2_decay=-0.5"},
        {"optimizer.name=adafactor", "optimizer.clip_threshold=2"},
        {fp16, "train.loss_scaling=static"},
        {fp16, "train.loss_scale=1024"},
        {fp16, "train.loss_scale_window=7"}}) {
    EXPECT_EQ(result_settings(parse(kSmall, {key})), result_settings(parse(kSmall))) << key;
    EXPECT_NE(result_settings(parse(kSmall, {reader, key})),
              result_settings(parse(kSmall, {reader})))
        << key;
  }
  const std::string fixed = "train.loss_scaling=static";
  EXPECT_EQ(result_settings(parse(kSmall, {fp16, fixed, "train.loss_scale_window=7"})),
            result_settings(parse(kSmall, {fp16, fixed})));
}

TEST(Config, AFileThatCannotBeReadIsNamed) {
  const testing::ScratchDirectory scratch;
  for (const std::string& none : {scratch / "missing.toml", scratch.path()}) {
    EXPECT_TRUE(holds(testing::message_of<InputError>([&] { load_config(none); }), none));
  }
  EXPECT_EQ(load_config(scratch.write("run.toml", kSmall)).model.hidden, 64);
}

}  // namespace
}  // namespace sluice::config
