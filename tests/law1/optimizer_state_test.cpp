// The optimizer's settings across a resume, and the bytes of a split master. The matrix has law 1
// for every optimizer.
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

// Weights on the device, moments and remainders on storage, gradients pinned: 12 bytes come and 12
// go for each element of the units (padding included), counted by the storage engine and the link.
TEST(SplitMaster, MovesTwelveBytesEachWay) {
  const TrainingBench bench;
  const TrainingRecord run = TrainingBench::run(
      bench.config("run", kStateModel + places("storage", "pinned", "storage") +
                              Overrides{"optimizer.states=split", "train.accumulate=1"}));
  EXPECT_EQ(run.end, TrainingEnd::kDone);
  const RunEvent& state = run.plan.at("state");
  const auto bytes = [&](const char* kind) { return state.at(kind).get<std::uint64_t>(); };
  const std::uint64_t elems = bytes("weight") / 2;
  EXPECT_EQ(bytes("master"), 2 * elems);
  EXPECT_EQ(bytes("moment1"), 4 * elems);
  EXPECT_EQ(bytes("moment2"), 4 * elems);
  const RunEvent& moved = run.plan.at("bytes_moved");
  EXPECT_EQ(moved.at("storage_write").get<std::uint64_t>(), 12 * elems);
  // The update reads twelve bytes; the passes fetch all that goes up but tokens and targets.
  const std::uint64_t tokens_bytes = 2 * 2 * 32 * sizeof(std::int32_t);
  EXPECT_EQ(moved.at("storage_read").get<std::uint64_t>(),
            12 * elems + moved.at("upload").get<std::uint64_t>() - tokens_bytes);
}

}  // namespace
}  // namespace sluice::train
