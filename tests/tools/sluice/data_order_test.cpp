// `sluice data --order`: the tokens that it names are those that training reads.
#include "engine/data/dataset.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

class DataOrder : public CliTest {
 protected:
  // Two documents; 3 samples in each of 2 micro-batches.
  DataOrder() {
    const std::string text = read_file(path("text.txt"));
    write_file(path("first.txt"), text.substr(0, 1000));
    write_file(path("second.txt"), text.substr(1000));
  }
  static Words order(const Words& more = {}) {
    return Words{"data", "config.toml", "--order"} + more +
           Words{"--set", "data.paths=[first.txt, second.txt]", "train.accumulate=2",
                 "train.micro_batch=3"};
  }
  std::vector<std::string> order_of_steps(const std::string& steps) const {
    return lines_of(succeed(order({"--steps", steps})).out);
  }
};

TEST_F(DataOrder, NamesTheTokensThatTrainingReads) {
  data::DatasetOptions options;
  options.paths = {path("first.txt").string(), path("second.txt").string()};
  options.eval_fraction = 0.1;
  options.seq = 32;
  options.micro_batch = 3;
  options.accumulate = 2;
  options.seed = 1;
  const data::Dataset dataset(options);  // Trainer fills every micro-batch from this class
  const std::vector<Json> samples = events_of(succeed(order({"--json"})), "sample");
  ASSERT_EQ(samples.size(), 6u * 2 * 3);
  std::size_t at = 0;
  for (std::int64_t step = 0; step < 6; ++step) {
    for (std::int64_t mb = 0; mb < 2; ++mb) {
      std::vector<std::int32_t> tokens(3 * 32);
      std::vector<std::int32_t> targets(3 * 32);
      dataset.fill(step, mb, tokens.data(), targets.data());
      for (std::size_t i = 0; i < 3; ++i, ++at) {
        const Json& sample = samples[at];
        EXPECT_EQ(sample.at("step"), step + 1);
        EXPECT_EQ(sample.at("micro_batch"), mb + 1);
        EXPECT_EQ(sample.at("sample"), i + 1);
        EXPECT_EQ(sample.at("number"), at + 1);
        EXPECT_EQ(sample.at("tokens"), 33);
        const std::string bytes = read_file(path(sample.at("file").get<std::string>()));
        // A sample that passes the end of the first document goes on after a token 0.
        const std::string stream =
            sample.at("file") == "first.txt" ? bytes + '\0' + read_file(path("second.txt")) : bytes;
        const auto offset = sample.at("offset").get<std::size_t>();
        const std::size_t last = offset + 32;
        const bool passes = sample.at("file") == "first.txt" && last > bytes.size();
        EXPECT_EQ(sample.at("last_file"), passes ? Json("second.txt") : sample.at("file"));
        EXPECT_EQ(sample.at("last_offset"), passes ? last - bytes.size() - 1 : last);
        for (std::size_t t = 0; t < 32; ++t) {
          EXPECT_EQ(tokens[i * 32 + t], static_cast<unsigned char>(stream.at(offset + t)));
          EXPECT_EQ(targets[i * 32 + t], static_cast<unsigned char>(stream.at(offset + t + 1)));
        }
      }
    }
  }
}

// The samples of a step do not depend on its division, so they are known before it is.
TEST_F(DataOrder, NamesTheTokensOfABatchThatIsNotDividedYet) {
  const auto offsets = [&](const Words& batch) {
    const Words command = Words{"data", "config.toml", "--order", "--json", "--steps", "2..3"} +
                          Words{"--set", "data.paths=[first.txt, second.txt]"} + batch;
    std::vector<Json> all;
    for (const Json& sample : events_of(succeed(command), "sample")) {
      all.push_back({sample.at("number"), sample.at("file"), sample.at("offset")});
    }
    return all;
  };
  const std::vector<Json> fixed = offsets({"train.accumulate=2", "train.micro_batch=3"});
  EXPECT_EQ(fixed.size(), 2u * 6);
  EXPECT_EQ(offsets({"train.batch=6", "train.micro_batch=auto"}), fixed);
}

TEST_F(DataOrder, ShowsSomeStepsToPeople) {
  const std::vector<std::string> lines = order_of_steps("4..5");
  ASSERT_EQ(lines.size(), 2u * 2 * 3);
  EXPECT_TRUE(lines.front().starts_with("step 4  micro-batch 1  sample 1 (number 19 of the run"))
      << lines.front();
  EXPECT_TRUE(holds(lines.front(), ".txt from token "));
  EXPECT_TRUE(lines.back().starts_with("step 5  micro-batch 2  sample 3 ")) << lines.back();
  EXPECT_EQ(order_of_steps("7").size(), 6u);
  // All samples of an epoch, and so the one that passes the end of the first document.
  EXPECT_TRUE(holds(succeed(order({"--steps", "1..24"})).out,
                    "first.txt from token 992 to second.txt token 23, 33 tokens"));
}

TEST_F(DataOrder, RefusesStepsThatAreNone) {
  for (const char* steps : {"0", "x", "5..4", "1..", "..3", "-1", "99999999999999"}) {
    expect_refused(order({"--json", "--steps", steps}), {"--steps"});
  }
  expect_refused({"data", "config.toml", "--json"}, {"--order"});
}

}  // namespace
}  // namespace sluice::testing
