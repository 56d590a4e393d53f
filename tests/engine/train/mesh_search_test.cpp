// The best mesh by bounds is the best of all meshes.
#include "engine/train/plan/mesh_search.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "tests/engine/planner/class_cases.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::train {
namespace {

using namespace testing;

config::Config config_of_world(Draws& draw, std::int64_t world, std::int64_t fold_groups) {
  const std::vector<std::string> settings{
      draw.chance(2) ? "model.family=gpt2" : "model.family=llama",
      "model.hidden=64",
      "model.heads=4",
      "model.vocab=500",
      "model.layers=4",
      "train.seq=32",
      "train.steps=2",
      "train.micro_batch=1",
      setting("train.accumulate", 2 * world),
      setting("train.fold_groups", fold_groups),
      "parallel.schedule=1f1b",
      "recompute.policy=none",
      "train.threads=1",
      "memory.device=" + draw.pick<std::string>({"1GiB", "20MiB", "24MiB"}),
      "memory.pinned=1GiB",
      "memory.storage=1GiB"};
  return config::parse_config("", "test", settings);
}

const TriedMesh& fastest(const MeshChoice& choice) {
  const TriedMesh* best = nullptr;
  for (const TriedMesh& tried : choice.tried) {
    if (tried.step_s && (best == nullptr || *tried.step_s < *best->step_s)) best = &tried;
  }
  return *best;
}

TEST(MeshSearch, FindsTheBestOfAllMeshes) {
  std::size_t left_out = 0;
  for (std::uint64_t seed = 0; seed < sweep(2); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draws draw(seed, "test/meshes");
    const std::int64_t world = draw.pick<std::int64_t>({6, 8, 16, 32});
    const config::Config config = config_of_world(
        draw, world, std::has_single_bit(static_cast<std::uint64_t>(world)) ? world : 1);
    const planner::HardwareProfile hardware = random_world_profile(draw);
    const MeshChoice some = choose_mesh(config, hardware, world);
    const MeshChoice all = choose_mesh(config, hardware, world, MeshScope::kAll);
    ASSERT_EQ(some.best.has_value(), all.best.has_value());
    ASSERT_EQ(some.tried.size(), all.tried.size());
    for (const TriedMesh& tried : all.tried) {
      if (!tried.step_s) continue;
      EXPECT_LE(tried.bound_s, *tried.step_s) << mesh_text(tried.mesh);
    }
    for (const TriedMesh& tried : some.tried) left_out += !tried.step_s && tried.why.empty();
    if (!all.best) continue;
    EXPECT_EQ(fastest(some).mesh, fastest(all).mesh);
    EXPECT_EQ(*fastest(some).step_s, *fastest(all).step_s);
    const config::Config& chosen = some.best->config;
    EXPECT_EQ(Mesh({chosen.parallel.data, chosen.parallel.tensor, chosen.parallel.pipeline,
                    chosen.parallel.zero}),
              fastest(all).mesh);
  }
  EXPECT_GT(left_out, 0u);
}

TEST(MeshSearch, NamesWhyNoMeshGoesWithTheConfiguration) {
  Draws draw(1, "test/meshes");
  const config::Config config = config_of_world(draw, 8, 8);
  const std::string words =
      message_of<InputError>([&] { choose_mesh(config, random_world_profile(draw), 11); });
  EXPECT_NE(words.find("no mesh of 11 ranks"), std::string::npos) << words;
}

TEST(MeshSearch, HasEveryMeshOnce) {
  const std::vector<Mesh> list = meshes_of(12, 2);
  // 12 has 6 divisors, and 6 has 4; one data-parallel rank has no ZeRO stages.
  EXPECT_EQ(list.size(), 5u * 4 + 1 + 3u * 4 + 1);
  for (const Mesh& mesh : list) EXPECT_EQ(mesh.ranks(), 12);
}

}  // namespace
}  // namespace sluice::train
