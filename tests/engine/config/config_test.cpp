// Reading and writing: kinds of values, ranges, unknown keys, tables, the dump.
#include "engine/config/config.hpp"

#include <gtest/gtest.h>

#include <set>

#include "engine/config/schema.hpp"
#include "tests/engine/config/small_config.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::config {
namespace {

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

TEST(Config, AnUnknownKeyNamesTheNearestKnownOne) {
  EXPECT_EQ(refusal(kSmall + "[memory]\n\ndevise = \"1GiB\"\n"),
            "run.toml:7: unknown key 'memory.devise'; did you mean 'memory.device'?");
  EXPECT_EQ(refusal(kSmall + "[memroy]\ndevice = 1\n"),
            "run.toml:6: unknown key 'memroy.device'; did you mean 'memory.device'?");
  EXPECT_EQ(refusal(kSmall, {"train.lr=1"}),
            "--set train.lr=1: unknown key 'train.lr'; did you mean 'optimizer.lr'?");
  EXPECT_EQ(refusal(kSmall + "[memory.place]\nweights = \"pinned\"\n"),
            "run.toml:6: unknown key 'memory.place.weights'; did you mean 'memory.place.weight'?");
  // A key that is written whole within its section; of equal words the nearest section.
  EXPECT_EQ(
      refusal(kSmall + "[log]\nlog.every = 2\n"),
      "run.toml:6: unknown key 'log.log.every'; did you mean 'log.every', which is 'every' in "
      "[log]?");
  for (const ConfigKey& key : config_schema()) {
    for (std::size_t dot = key.path.find('.'); dot != std::string::npos;
         dot = key.path.find('.', dot + 1)) {
      const std::string section = key.path.substr(0, dot), word = key.path.substr(dot + 1);
      EXPECT_TRUE(
          holds(refusal(kSmall, {section + "." + key.path + "=1"}),
                "did you mean '" + key.path + "', which is '" + word + "' in [" + section + "]?"));
    }
  }
  EXPECT_TRUE(holds(refusal(kSmall, {"logs.every=1"}), "did you mean 'log.every'?"));
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

TEST(Config, APolicyWithACountComesBackTheSame) {
  const Config config = parse(kSmall, {"recompute.policy=every:12"});
  EXPECT_EQ(config.recompute.policy, Config::Recompute::kEvery);
  EXPECT_EQ(config.recompute.every, 12);
  const ConfigKey* key = find_config_key("recompute.policy");
  EXPECT_EQ(std::get<std::string>(key->read(config)), "every:12");
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
  EXPECT_EQ(again.optimizer.beta2, 0.95);
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

TEST(Config, AFileThatCannotBeReadIsNamed) {
  const testing::ScratchDirectory scratch;
  for (const std::string& none : {scratch / "missing.toml", scratch.path()}) {
    EXPECT_TRUE(holds(testing::message_of<InputError>([&] { load_config(none); }), none));
  }
  EXPECT_EQ(load_config(scratch.write("run.toml", kSmall)).model.hidden, 64);
}

}  // namespace
}  // namespace sluice::config
