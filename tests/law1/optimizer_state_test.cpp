// The optimizer's settings across a resume. The matrix has law 1 for every optimizer.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::train {
namespace {

using namespace testing;

const Overrides kStateModel = small_gpt2(2, 12);

// A version without these keys behaved as their defaults do now.
TEST(Resume, TakesKeysThatACheckpointDoesNotNameForTheirDefaults) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("whole", kStateModel));
  const config::Config config = bench.config("parts", kStateModel);
  TrainingRecord whole = TrainingBench::run(config, until(5));
  const checkpoint::CheckpointFound found =
      checkpoint::find_checkpoint(bench.first_run("parts") + "/checkpoints");
  checkpoint::CheckpointManifest manifest = found.manifest;
  for (const char* key : {"optimizer.groups", "optimizer.moments"}) {
    ASSERT_EQ(manifest.settings.erase(key), 1u) << key;
  }
  checkpoint::save_manifest(manifest, found.directory + "/manifest.json");
  const TrainingOptions rest = until(0, bench.run_directory("parts"));
  const std::string words = message_of<InputError>([&] {
    TrainingBench::run(bench.config("parts", kStateModel + Overrides{"optimizer.moments=8bit"}),
                       rest);
  });
  EXPECT_TRUE(holds(words, R"(optimizer.moments = "fp32", which is "8bit" now)"));
  whole.append(TrainingBench::run(config, rest));
  expect_same_bits(whole, reference);
}

}  // namespace
}  // namespace sluice::train
