#include "engine/config/config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "engine/config/schema.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::config {
namespace {

const std::string kSmall = "[model]\nlayers = 2\nhidden = 64\nheads = 4\n";

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "run.toml", overrides);
}
std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return testing::message_of<InputError>([&] { parse(text, overrides); });
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
  EXPECT_NE(refusal(kSmall, {many}).find("at most 512"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {two, "memory.storage_shares=1,2,3"}).find("give one for each"),
            std::string::npos);
  parse(kSmall, {two, "memory.storage_shares=4095,1"});
  const std::string steep = refusal(kSmall, {two, "memory.storage_shares=1,4096"});
  EXPECT_NE(steep.find("memory.storage_shares gives a path less than 1/4096"), std::string::npos);
  EXPECT_NE(steep.find("of 2 paths is 4095 to 1"), std::string::npos) << steep;
  for (const char* wrong : {"1,0", "1,-1", "1,nan", "1,x"}) {
    EXPECT_NE(refusal(kSmall, {two, std::string("memory.storage_shares=") + wrong})
                  .find("memory.storage_shares"),
              std::string::npos);
  }
}

TEST(Config, TheLastOverrideWins) {
  EXPECT_EQ(parse(kSmall, {"train.steps=5", "train.steps=7"}).train.steps, 7);
}

TEST(Config, AnOverrideMayKeepTheQuotesOfAFile) {
  EXPECT_EQ(parse(kSmall, {"log.dir=\"a run\""}).log.dir, "a run");
  EXPECT_EQ(parse(kSmall, {"log.dir='b'"}).log.dir, "b");
  EXPECT_EQ(parse(kSmall, {"log.dir=c\""}).log.dir, "c\"");
  EXPECT_EQ(parse(kSmall, {"memory.device=\"64MiB\""}).memory.device_bytes, 64 * kMiB);
  EXPECT_EQ(parse(kSmall, {"data.paths=\"a\",\"b\""}).data.paths,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(refusal(kSmall, {"train.steps=\"5\""}).find("must be an integer"), std::string::npos);
  EXPECT_EQ(parse(kSmall, {"recompute.policy=\"unit\""}).recompute.policy,
            Config::Recompute::kUnit);
}

TEST(Config, AStoragePathStandsOnce) {
  EXPECT_NE(refusal(kSmall, {"memory.storage_paths=a,b,./a/"}).find("names './a/' twice"),
            std::string::npos);
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
}

TEST(Config, AMistypedValueNamesTheKeyTheValueAndTheRightType) {
  EXPECT_EQ(refusal("[model]\nlayers = \"two\"\n"),
            "run.toml:2: model.layers must be an integer from 1 to 4096; got \"two\"");
  EXPECT_EQ(refusal(kSmall + "[memory]\ndevice = \"lots\"\n"),
            "run.toml:6: memory.device must be a byte count such as \"64MiB\", from 0 to 1024TiB; "
            "got \"lots\"");
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
  EXPECT_NE(refusal(kSmall + "[train]\nsteps = 1.5\n").find("got 1.5"), std::string::npos);
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
    EXPECT_NE(words.find("model.layers"), std::string::npos) << words;
    EXPECT_NE(words.find("at most 137 billion"), std::string::npos) << words;
  }
  EXPECT_NO_THROW(parse(kSmall, {"model.layers=96", "model.hidden=8192"}));
}

TEST(Config, RangesAreKept) {
  for (const std::string assignment :
       {"model.layers=0", "model.layers=4097", "memory.chunk=3MiB", "memory.chunk=0",
        "memory.device=-1", "optimizer.betas=0.9,1.0", "optimizer.betas=0.9", "optimizer.eps=0",
        "optimizer.eps=1e-60", "optimizer.lr=nan", "train.clip=inf", "data.eval_fraction=1",
        "train.seed=-1", "train.seed=99999999999999999999", "parallel.zero=4",
        "memory.link_latency=2s", "log.every=0", "memory.storage_paths=a,,b"}) {
    EXPECT_NE(refusal(kSmall, {assignment}).find(" must be "), std::string::npos) << assignment;
  }
}

TEST(Config, RangesAreKeptInTheFileToo) {
  EXPECT_EQ(refusal(kSmall + "[log]\nevery = 0\n"),
            "run.toml:6: log.every must be an integer from 1 to 1000000000000; got 0");
  EXPECT_NE(refusal(kSmall + "[memory]\nchunk = \"3MiB\"\n").find("a multiple of 2MiB"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall + "[optimizer]\nbetas = [0.9]\n").find("got a list of 1 values"),
            std::string::npos);
}

TEST(Config, ValuesThatDisagreeAreRefused) {
  EXPECT_EQ(refusal(kSmall, {"model.heads=3"}),
            "--set model.heads=3: model.heads is 3, which must divide model.hidden, 64");
  EXPECT_NE(refusal(kSmall, {"model.kv_heads=3"}).find("divide model.heads, 4"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {"model.family=llama", "model.heads=64"}).find("even"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"train.seq=64", "model.max_seq=32"}).find("at most model.max_seq, 32"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"train.eval_every=5"}).find("data.eval_fraction"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {"train.accumulate=4", "train.fold_groups=3"}).find("divide"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"train.seq=1048576", "train.micro_batch=8"}).find("4194304"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"train.steps=1000000000000", "train.accumulate=1048576"})
                .find("tokens of the run"),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"memory.storage_sqpoll=true", "memory.storage_engine=posix"})
                .find("memory.storage_sqpoll is io_uring's"),
            std::string::npos);
  EXPECT_TRUE(parse(kSmall, {"memory.storage_sqpoll=true"}).memory.storage_sqpoll);
  EXPECT_EQ(refusal("[model]\nlayers = 1\nhidden = 8\n"),
            "run.toml: model.heads is missing; it must be an integer from 1 to 16384");
}

TEST(Config, AnOptimizerRefusesStatesThatItCannotKeep) {
  EXPECT_NE(refusal(kSmall, {"optimizer.states=split", "train.precision=fp32"})
                .find("needs train.precision = \"bf16\""),
            std::string::npos);
  EXPECT_NE(refusal(kSmall, {"optimizer.name=adafactor", "optimizer.moments=8bit"})
                .find("leave optimizer.moments at \"fp32\""),
            std::string::npos);
  EXPECT_NE(
      refusal(kSmall, {"optimizer.name=sgd", "optimizer.momentum=0", "optimizer.moments=bf16"})
          .find("without momentum keeps no moment"),
      std::string::npos);
  EXPECT_NE(refusal(kSmall, {"optimizer.nesterov=true"}).find("\"sgd\" with a momentum"),
            std::string::npos);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion"}).optimizer.beta2, 0.99);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=lion", "optimizer.betas=0.9,0.5"}).optimizer.beta2, 0.5);
  EXPECT_EQ(parse(kSmall, {"optimizer.name=muon"}).optimizer.momentum, 0.95);
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
    const std::string words = refusal(kSmall, {"optimizer.groups=" + bad});
    EXPECT_NE(words.find("optimizer.groups must be a list of tables such as"), std::string::npos)
        << words;
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
  for (const std::string bad : {"'storage'", "{"}) {
    const std::string words = refusal(kSmall, {"memory.place.saved=" + bad});
    EXPECT_NE(words.find("memory.place.saved must be a table such as"), std::string::npos) << words;
  }
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

TEST(Config, APlaceOfASavedPartThatIsNoneIsNamed) {
  const std::string choices = "must be \"auto\", \"device\", \"pinned\" or \"storage\"; got ";
  const auto expect = [&](const std::string& words, const std::string& got) {
    EXPECT_NE(words.find("memory.place.saved.qkv " + choices + got), std::string::npos) << words;
  };
  expect(refusal(kSmall, {"memory.place.saved.qkv=disk"}), "\"disk\"");
  expect(refusal(kSmall, {"memory.place.saved={mlp_up='device',qkv='disk'}"}), "\"disk\"");
  expect(refusal(kSmall, {"memory.place.saved={qkv=1}"}), "1");
  expect(refusal(kSmall + "[memory.place.saved]\nqkv = \"disk\"\n"), "\"disk\"");
}

TEST(Config, APartWithoutANameIsRefusedAsThat) {
  const std::string words = "memory.place.saved has an entry whose name is empty; name a part";
  for (const std::string entry : {".\"\"=pinned", ".=pinned", "={''='pinned'}", "={''=1}"}) {
    const std::string sentence = refusal(kSmall, {"memory.place.saved" + entry});
    EXPECT_EQ(sentence.rfind("--set memory.place.saved" + entry + ": " + words, 0), 0u) << sentence;
  }
  const std::string file = refusal(kSmall + "[memory.place.saved]\n\"\" = \"pinned\"\n");
  EXPECT_NE(file.find(words), std::string::npos) << file;
}

// A name is a user's text: it is shown as one line, cut where it is long.
TEST(Config, ANameOfAPartIsShownOnOneLine) {
  const std::string unit = "recompute.policy=unit";
  const std::string long_name(3000, 'q');
  for (const std::string& sentence :
       {refusal(kSmall, {unit, "memory.place.saved.a\nb=pinned"}),
        refusal(kSmall + "[memory.place.saved]\n\"a\\nb\" = \"pinned\"\n", {unit}),
        refusal(kSmall, {unit, "memory.place.saved." + long_name + "=pinned"})}) {
    EXPECT_NE(sentence.find("has no meaning with recompute.policy"), std::string::npos) << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    EXPECT_LT(sentence.size(), 500u) << sentence;
  }
}

// Units that are made again save nothing between their passes.
TEST(Config, PlacesOfSavedPartsAreRefusedWhereUnitsAreRecomputed) {
  const std::string unit = "recompute.policy=unit";
  for (const std::string part : {"qkv", "*"}) {
    const std::string words = refusal(kSmall, {unit, "memory.place.saved." + part + "=pinned"});
    EXPECT_NE(words.find("memory.place.saved." + part + " has no meaning with recompute.policy = "),
              std::string::npos)
        << words;
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
  EXPECT_NE(refusal("[model]\nlayers = 2\nlayers = 3\n").find("run.toml:3"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {"no equals sign"}).find("write key=value"), std::string::npos);
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
  const std::string help = config_help();
  const Config config = parse(kSmall);
  for (const ConfigKey& key : config_schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_NE(help.find("  " + key.path + "\n"), std::string::npos) << key.path;
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
      if (choice.ends_with(":K")) continue;  // see APolicyWithACountComesBackTheSame
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
  for (const std::string assignment :
       {"data.format=megatron", "parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2",
        "parallel.context=2", "parallel.zero=1", "parallel.schedule=1f1b", "model.from=somewhere",
        "train.reduction=sequential", "train.fold_groups=2"}) {
    const Config config = parse(kSmall, {"train.accumulate=2", assignment});
    const std::string words = testing::message_of<InputError>([&] { check_supported(config); });
    const std::string path = assignment.substr(0, assignment.find('='));
    EXPECT_EQ(words.rfind(path, 0), 0u) << words;
    EXPECT_NE(config_help().find("not in this version: " + path + " "), std::string::npos) << path;
    EXPECT_NE(words.find("is not available in this version"), std::string::npos);
  }
}

TEST(Config, AnUpdateInTheBackwardPassMayNotDependOnTheNorm) {
  const auto words = [](const std::vector<std::string>& overrides) {
    return testing::message_of<InputError>([&] { parse(kSmall, overrides); });
  };
  const std::string in_backward = "optimizer.placement=in_backward";
  EXPECT_NE(words({in_backward}).find("needs train.clip = 0"), std::string::npos);
  EXPECT_NE(words({in_backward, "train.clip=0", "train.precision=fp16"})
                .find("needs train.precision = \"bf16\" or \"fp32\""),
            std::string::npos);
  EXPECT_NO_THROW(check_supported(parse(kSmall, {in_backward, "train.clip=0"})));
}

TEST(Config, ASpeculativeUpdateMayDependOnTheNormButNotOnACommit) {
  const std::string speculative = "optimizer.placement=speculative";
  EXPECT_NO_THROW(check_supported(parse(kSmall, {speculative, "train.precision=fp16"})));
  const std::string words = testing::message_of<InputError>([&] {
    parse(kSmall, {speculative, "checkpoint.mode=durable"});
  });
  EXPECT_NE(words.find("\"speculative\" needs checkpoint.mode = \"scratch\""), std::string::npos)
      << words;
}

TEST(ResultSettings, ChangeOnlyWithSettingsThatDetermineResults) {
  const auto plain = result_settings(parse(kSmall));
  EXPECT_EQ(plain.at("model.layers"), "2");
  for (const std::string assignment :
       {"memory.device=64MiB", "memory.place.weight=storage", "memory.chunk=4MiB",
        "memory.place.activation=storage", "memory.prefetch=7", "recompute.policy=unit",
        "checkpoint.every=3", "checkpoint.final=false", "log.dir=elsewhere",
        "optimizer.placement=next_forward", "train.order=unit", "train.threads=2",
        "train.loss_scale_patience=3"}) {
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

// Keys that the rule does not read refuse no resume.
TEST(ResultSettings, HoldTheKeysThatTheRuleReads) {
  const std::vector<std::string> of_others{"optimizer.momentum=0.5", "optimizer.beta2_decay=-0.5",
                                           "optimizer.clip_threshold=2"};
  for (const std::string& key : of_others) {
    EXPECT_EQ(result_settings(parse(kSmall, {key})), result_settings(parse(kSmall))) << key;
  }
  for (const auto& [name, key] : {std::pair{"sgd", "optimizer.momentum=0.5"},
                                  {"muon", "optimizer.momentum=0.5"},
                                  {"adafactor", "optimizer.beta2_decay=-0.5"},
                                  {"lion", "optimizer.betas=0.5,0.5"}}) {
    const std::string rule = std::string("optimizer.name=") + name;
    EXPECT_NE(result_settings(parse(kSmall, {rule, key})), result_settings(parse(kSmall, {rule})))
        << key;
  }
}

// The keys of loss scaling count in fp16 alone, so that they refuse no resume elsewhere.
TEST(ResultSettings, HoldLossScalingOnlyWhereItTakesPlace) {
  const std::vector<std::string> keys{"train.loss_scaling=static", "train.loss_scale=1024",
                                      "train.loss_scale_window=7"};
  const std::string fp16 = "train.precision=fp16";
  for (const std::string& key : keys) {
    EXPECT_EQ(result_settings(parse(kSmall, {key})), result_settings(parse(kSmall))) << key;
    EXPECT_NE(result_settings(parse(kSmall, {fp16, key})), result_settings(parse(kSmall, {fp16})))
        << key;
  }
  EXPECT_EQ(result_settings(parse(kSmall, {fp16, keys[0], keys[2]})),
            result_settings(parse(kSmall, {fp16, keys[0]})));
}

TEST(Config, TheLossScaleIsAPowerOfTwo) {
  for (const std::string scale : {"1", "65536", "4294967296"}) {
    EXPECT_NO_THROW(parse(kSmall, {"train.loss_scale=" + scale}));
  }
  EXPECT_NE(refusal(kSmall, {"train.loss_scale=1000"})
                .find("train.loss_scale is 1000, which must be a power of two, such as 512"),
            std::string::npos);
}

TEST(Config, AFileThatCannotBeReadIsNamed) {
  const testing::ScratchDirectory scratch;
  const auto missing = scratch / "missing.toml";
  EXPECT_NE(testing::message_of<InputError>([&] { load_config(missing); }).find(missing),
            std::string::npos);
  EXPECT_NE(
      testing::message_of<InputError>([&] { load_config(scratch.path()); }).find(scratch.path()),
      std::string::npos);
  EXPECT_EQ(load_config(scratch.write("run.toml", kSmall)).model.hidden, 64);
}

}  // namespace
}  // namespace sluice::config
