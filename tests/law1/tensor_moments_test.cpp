// Moments in bf16 on the ranks of tensor groups. They are rounded at random, by keys that do not
// depend on the mesh, so meshes have the bits of their group, too. Copies of key/value heads are
// rounded alike: TensorResume goes on from files, which hold one of them.
#include <gtest/gtest.h>

#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::train {
namespace {

using namespace testing;

TEST(TensorMoments, MeshesHaveTheBitsOfTheirGroup) {
  for (int zero = 0; zero < 4; ++zero) {
    if (samples_sweeps() && zero != 3) continue;
    SCOPED_TRACE("ZeRO " + std::to_string(zero));
    // Two ranks hold copies of one key/value head, and unequal parts of the vocabulary.
    const Overrides settings{zero % 2 == 0 ? "model.family=gpt2" : "model.family=llama",
                             zero % 2 == 0 ? "parallel.sequence=true" : "parallel.sequence=false",
                             zero / 2 == 0 ? "optimizer.states=split" : "optimizer.states=fp32",
                             "model.kv_heads=1",
                             "model.vocab=277",
                             "train.precision=bf16",
                             "train.accumulate=4",
                             "train.order=microbatch"};
    const Overrides bf16{"optimizer.moments=bf16"};
    const Overrides plain =
        Overrides{"recompute.policy=none"} + places("device", "device", "device");
    const Overrides mesh{"parallel.data=2", "parallel.zero=" + std::to_string(zero)};
    const TrainingBench bench, other;
    const RanksRecord alone = train_group(config_of_group(bench, settings + bf16 + plain, 2));
    const RanksRecord found = train_group(config_of_group(
        other,
        settings + bf16 + mesh +
            (zero == 3 ? places("storage", "storage", "storage")
                       : places("device", zero == 0 ? "device" : "pinned", "storage")),
        2));
    EXPECT_EQ(found, alone);
    const RanksRecord exact = train_group(config_of_group(bench, settings + plain, 2));
    EXPECT_EQ(exact.losses.front(), alone.losses.front());
    EXPECT_NE(exact.weights_hash, alone.weights_hash) << "no moment was rounded";
  }
}

}  // namespace
}  // namespace sluice::train
