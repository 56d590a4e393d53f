// The directory beside the final weights that transformers loads. (train_test has a run that writes
// it.)
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class HuggingFace : public CliTest {};

TEST_F(HuggingFace, AModelThatTransformersLacksHasNoneAndTheRunSaysWhy) {
  const ChildOutcome outcome =
      succeed({"train", "config.toml", "--steps", "1", "--set", "model.kv_heads=1"});
  EXPECT_TRUE(holds(outcome.err, "huggingface' is not written: model.kv_heads is 1"));
  EXPECT_FALSE(fs::exists(find_file("run", "weights.safetensors").parent_path() / "huggingface"));
}

}  // namespace
}  // namespace sluice::testing
