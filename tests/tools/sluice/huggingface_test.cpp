// The directory beside the final weights that transformers loads.
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class HuggingFace : public CliTest {};

TEST_F(HuggingFace, ARunWritesItWhereItWritesItsFinalWeights) {
  succeed({"train", "config.toml", "--steps", "1"});
  const fs::path weights = find_file("run", "weights.safetensors");
  const fs::path directory = weights.parent_path() / "huggingface";
  EXPECT_GT(fs::file_size(directory / "model.safetensors"), 100'000u);
  EXPECT_EQ(Json::parse(read_file(directory / "config.json")).at("n_embd"), 64);
}

TEST_F(HuggingFace, AModelThatTransformersLacksHasNoneAndTheRunSaysWhy) {
  const ChildOutcome outcome =
      succeed({"train", "config.toml", "--steps", "1", "--set", "model.kv_heads=1"});
  EXPECT_TRUE(holds(outcome.err, "huggingface' is not written: model.kv_heads is 1"));
  EXPECT_FALSE(fs::exists(find_file("run", "weights.safetensors").parent_path() / "huggingface"));
}

}  // namespace
}  // namespace sluice::testing
