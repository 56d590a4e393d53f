// Bad input: exit 2, one sentence that names the error, an event, and nothing touched.
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/support/temp_directory.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class BadInput : public CliTest {
 protected:
  // Refused by train, with and without --json, for one reason: a `--set`.
  void expect_set_refused(const std::string& assignment, const Words& words) const {
    expect_refused({"train", "config.toml", "--set", assignment}, words);
    expect_refused({"train", "config.toml", "--json", "--set", assignment}, words);
  }
  void expect_config_refused(const std::string& text, const Words& words) const {
    write_file(path("bad.toml"), text);
    expect_refused({"train", "bad.toml", "--json"}, words);
    expect_refused({"plan", "bad.toml", "--json"}, words);
  }
  std::string config() const { return read_file(path("config.toml")); }
};

// One value of each kind; config_test has them all.
TEST_F(BadInput, AKeyOrAValueOfTheConfigurationIsNamed) {
  expect_set_refused("memory.devise=1GiB", {"'memory.devise'", "'memory.device'"});
  expect_set_refused("weather=fine", {"'weather'; sluice --help-config lists all keys"});
  expect_set_refused("model=3", {"model is a section", "model.family"});
  expect_set_refused("train.steps=many", {"train.steps", "an integer", "\"many\""});
  expect_set_refused("memory.storage=plenty", {"memory.storage", "\"auto\"", "64MiB"});
  expect_set_refused("train.loss_scale=1000", {"train.loss_scale is 1000", "power of two", "512"});
  expect_set_refused("memory.device", {"key=value"});
  expect_set_refused("model.heads=3", {"model.heads", "3", "64"});
  expect_config_refused(config() + "[trian]\nsteps = 3\n", {"bad.toml:", "'train.steps'"});
  expect_config_refused("[model]\nlayers = \"two\"\n", {"bad.toml:2", "model.layers", "integer"});
}

TEST_F(BadInput, AConfigurationThatCannotBeReadIsRefused) {
  expect_refused({"train", "absent.toml", "--json"}, {"absent.toml"});
  expect_refused({"train", ".", "--json"}, {"'.' is not a run's directory"});
  expect_refused({"plan", ".", "--json"}, {"cannot be read"});
  expect_config_refused("[model\nlayers = 2\n", {"bad.toml:1", "TOML"});
  expect_config_refused(std::string("\0\x80\xff", 3), {"bad.toml", "TOML"});
  expect_config_refused("", {"model.layers", "missing"});
}

TEST_F(BadInput, AKeyOfManyDotsIsRefusedBeforeTheParserOverflowsItsStack) {
  std::string key = "a";
  for (int i = 0; i < 50'000; ++i) key += ".a";
  expect_config_refused(config() + key + " = 1\n", {"bad.toml:", "more than 64 dots"});
  expect_config_refused(config() + "[" + key + "]\n", {"bad.toml:", "more than 64 dots"});
  // Quotes hide no dots: neither those of a string that ends, nor of one of several lines.
  expect_config_refused("x = [\"\"\"\n\"\"\", {" + key + " = 1}]\n", {"bad.toml:2", "64 dots"});
  expect_config_refused("x = ['''a''', {'.'." + key + " = 1}]\n", {"bad.toml:1", "64 dots"});
  expect_refused({"plan", "config.toml", "--json", "--set", "memory.place.saved={" + key + "=1}"},
                 {"64 dots"});
  // This nesting is as deep as the rules for dots and for nesting allow.
  std::string deepest;
  const std::string longest = key.substr(0, 2 * 64 + 1);
  for (int i = 0; i < 255; ++i) deepest += "{" + longest + " = [\n";
  expect_config_refused("x = [" + deepest + "\n", {"bad.toml:", "TOML"});
}

TEST_F(BadInput, DotsInTextAreNoKeys) {
  const std::string dots(2000, '.');
  succeed({"plan", "config.toml", "--set", "log.dir=" + dots.substr(0, 200) + "x"});
  write_file(path("dots.toml"),
             "# " + dots + "\n" + config() + "\n[[optimizer.groups]]\nmatch = \"" + dots + "*\"\n");
  expect_refused({"plan", "dots.toml"}, {"no tensor's name matches"});  // read, and understood
  std::string shares = "0.5";
  for (int i = 0; i < 100; ++i) shares += ", 0.5";
  expect_refused({"plan", "config.toml", "--set", "memory.storage_shares=[" + shares + "]"},
                 {"memory.storage_shares", "101"});
}

TEST_F(BadInput, AFileThatIsNotRegularIsRefusedWithoutWaiting) {
  // Elsewhere, since expect_refused() reads every file of the working directory.
  const TempDirectory elsewhere;
  const std::string fifo = (elsewhere.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const char* command : {"train", "plan"}) {
    expect_refused({command, fifo.c_str(), "--json"}, {"fifo", "not a regular file"});
  }
  expect_refused({"train", "config.toml", "--json", "--set", "data.paths=/dev/zero"},
                 {"'/dev/zero'", "not a regular file"});
  fs::create_directory(path("profile"));
  expect_refused({"plan", "config.toml", "--json", "--hardware", "profile"},
                 {"'profile'", "directory"});
  expect_refused({"plan", "config.toml", "--json", "--hardware", fifo.c_str()},
                 {"fifo'", "not a regular file"});
}

TEST_F(BadInput, AWorkingDirectoryThatIsGoneIsNamed) {
  const std::string config = path("config.toml").string();
  for (const char* command : {"train", "plan"}) {
    const ChildOutcome outcome =
        run_shell("/bin/mkdir gone && cd gone && /bin/rmdir ../gone && exec $SLUICE " +
                  std::string(command) + " " + config);
    EXPECT_EQ(outcome.exit_status, 2) << outcome.err;
    EXPECT_TRUE(holds(outcome.err, "working directory"));
  }
}

TEST_F(BadInput, DataThatIsMissingEmptyOrTooShortIsRefused) {
  expect_set_refused("data.paths=absent.txt", {"data.paths", "'absent.txt'", "does not exist"});
  expect_set_refused("data.paths=[]", {"data.paths", "empty"});
  fs::create_directory(path("nothing"));
  expect_set_refused("data.paths=nothing", {"'nothing'", "no text"});
  write_file(path("short.txt"), "too short");
  expect_set_refused("data.paths=short.txt", {"tokens", "33"});
  expect_set_refused("data.eval_fraction=0.001", {"data.eval_fraction", "33"});
}

TEST_F(BadInput, TokenFilesAreCheckedBeforeTheStart) {
  std::vector<std::uint16_t> tokens(1000, 7);
  const auto train = [&](Words words) {
    write_file(path("tokens.bin"), llmc_bytes(tokens));
    words.insert(words.end(), {"--set", "data.format=llmc", "data.paths=tokens.bin"});
    return words;
  };
  tokens[600] = 256;
  expect_refused(train({"train", "config.toml", "--json"}),
                 {"tokens.bin", "256", "600", "model.vocab"});
  tokens[600] = 255;
  succeed(train({"train", "config.toml", "--steps", "1"}));
}

TEST_F(BadInput, DirectoriesThatCannotBeOnesAreRefused) {
  expect_set_refused("memory.storage_paths=text.txt", {"memory.storage_paths", "'text.txt'"});
  expect_set_refused("memory.storage_paths=text.txt/below",
                     {"memory.storage_paths", "'text.txt/below'"});
  expect_set_refused("log.dir=text.txt", {"log.dir", "'text.txt'"});
  expect_set_refused("log.dir=/proc/x", {"log.dir", "'/proc/x'", "cannot be written"});
  expect_set_refused("log.dir=text.txt/run", {"log.dir", "'text.txt/run'"});
  expect_set_refused("checkpoint.dir=text.txt", {"checkpoint.dir", "'text.txt'"});
}

TEST_F(BadInput, BudgetsLargerThanTheMachineAreRefused) {
  for (const char* key : {"memory.device", "memory.pinned"}) {
    expect_set_refused(std::string(key) + "=100TiB", {key, "100TiB", "available"});
  }
  // 1 PiB: more than any disk that this test will meet.
  expect_set_refused("memory.storage=1024TiB", {"memory.storage = 1024TiB", "free", "storage"});
  for (const char* setting : {"memory.device=100TiB", "memory.storage=1024TiB"}) {
    expect_refused({"plan", "config.toml", "--json", "--set", setting}, {"TiB"});
  }
}

TEST_F(BadInput, FeaturesThatThisVersionLacksAreNamed) {
  expect_set_refused("data.format=megatron", {"data.format", "this version"});
}

TEST_F(BadInput, RanksThatCannotDivideTheStepAreRefused) {
  expect_refused({"plan", "config.toml", "--json", "--world", "7"},
                 {"train.accumulate", "parallel.data = 7", "such as 7"});
  expect_refused({"plan", "config.toml", "--json", "--set", "parallel.data=4", "--set",
                  "train.accumulate=12", "--set", "train.fold_groups=12"},
                 {"train.fold_groups", "power of two", "such as 4"});
  expect_refused({"plan", "config.toml", "--json", "--set", "parallel.data=2", "--set",
                  "train.accumulate=2", "--set", "memory.place.weight=pinned"},
                 {"memory.place.weight", "use parallel.zero = 3"});
}

TEST_F(BadInput, AGpuThatIsNotThereIsNotPretended) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // where there is one it is hidden
  for (const char* const command : {"train", "plan"}) {
    expect_refused({command, "config.toml", "--json", "--set", "memory.backend=cuda"},
                   {R"(memory.backend = "cuda")", R"(use "host")"});
  }
  expect_refused({"bench", "copy", "--backend", "cuda", "--json"}, {"memory.backend"});
  expect_refused({"bench", "copy", "--backend", "tpu"}, {});
}

TEST_F(BadInput, AMistypedCommandIsAnsweredWithTheNearest) {
  expect_refused({"trian", "config.toml", "--json"}, {"'trian'", "'sluice train'"});
  expect_refused({"bench", "coppy", "--json"}, {"'coppy'", "'sluice bench copy'"});
  expect_refused({"learn"}, {"'learn' is not a command; see sluice --help"});
}

TEST_F(BadInput, AMistypedOptionIsAnsweredWithTheNearest) {
  expect_refused({"train", "config.toml", "--stps", "3"},
                 {"unknown option '--stps'; did you mean '--steps'?"});
  expect_refused({"plan", "config.toml", "--json", "--hardwear=h100"}, {"'--hardware'"});
  expect_refused({"bench", "copy", "--byte", "1GiB"}, {"'--byte'", "'--bytes'"});
  expect_refused({"launch", "-m", "2"}, {"unknown option '-m'; see sluice launch --help"});
  expect_refused({"train", "config.toml", "--weather"}, {"see sluice train --help"});
  // Errors name the help that has the answer.
  expect_refused({"plan"}, {"CONFIG is required", "see sluice plan --help"});
  expect_refused({"train", "config.toml", "again.toml"}, {"see sluice train --help"});
  expect_refused({"train", "runs/nothere"}, {"'runs/nothere' does not exist"});
}

TEST_F(BadInput, NumbersThatAreNoneAreRefused) {
  for (const char* world : {"0", "-1", "x", "1e9"}) {
    EXPECT_LT(
        expect_refused({"plan", "config.toml", "--json", "--world", world}, {"--world"}).size(),
        200u);
  }
  for (const char* seconds : {"nan", "inf", "0", "-1", "61", "1s", ""}) {
    const std::string sentence =
        expect_refused({"doctor", "--json", "--seconds", seconds}, {"--seconds"});
    EXPECT_LT(sentence.size(), 200u);
  }
  for (const char* seed : {"-1", "x", "99999999999999999999"}) {
    const std::string sentence =
        expect_refused({"replay", "--generate", "dense", "--json", "--seed", seed}, {"--seed"});
    EXPECT_LT(sentence.size(), 200u) << sentence;
  }
  expect_refused({"bench", "copy", "--json", "--bytes", "99999TiB"}, {"--bytes", "device memory"});
  expect_refused({"bench", "allocator", "--json", "--seconds", "nan"}, {"--seconds"});
  expect_refused({"bench", "storage", "--json", "--block", "1000"}, {"block", "4096"});
  expect_refused({"bench", "storage", "--json", "--block", "much"}, {"--block"});
  expect_refused({"bench", "adam", "--json", "--block", "1MiB"}, {"--block"});
}

TEST_F(BadInput, ACachedProfileThatIsDamagedIsPassedOver) {
  fs::create_directories(path("cache/sluice"));
  write_file(path("cache/sluice/hardware.json"), "{\"format\": ");
  for (const Words& arguments :
       {Words{"plan", "config.toml", "--json"}, Words{"train", "config.toml", "--steps", "1"}}) {
    const ChildOutcome outcome = succeed(arguments);
    EXPECT_TRUE(holds(outcome.err, "hardware.json"));
    EXPECT_TRUE(holds(outcome.err, "default machine"));
  }
  expect_refused(
      {"plan", "config.toml", "--json", "--hardware", path("cache/sluice/hardware.json").string()},
      {"hardware.json", "not JSON"});
}

TEST_F(BadInput, ArgumentsThatAreNoneAreRefused) {
  for (const Words& arguments :
       {Words{"learn"}, Words{"train"}, Words{"train", "config.toml", "--quick"},
        Words{"train", "config.toml", "--steps", "some"},
        Words{"train", "config.toml", "--steps", "-1"}, Words{"train", "config.toml", "--set"},
        Words{"plan"}, Words{"report"}, Words{"bench"}, Words{"bench", "coffee"},
        Words{"doctor", "--seconds", "0"}}) {
    expect_refused(arguments, {});
    Words with_json = arguments;
    with_json.emplace_back("--json");
    if (arguments.front() != "report") expect_refused(with_json, {});
  }
}

}  // namespace
}  // namespace sluice::testing
