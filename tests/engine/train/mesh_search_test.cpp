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

// Every mesh of worlds with slow and fast links, in each order of passes.
TEST(MeshSearch, NoPlanIsFasterThanItsBound) {
  std::size_t pipelines = 0;
  const std::vector<std::vector<std::string>> orders{
      {"parallel.schedule=gpipe"},
      {"parallel.schedule=1f1b"},
      {"parallel.schedule=zb-h1"},
      {"parallel.schedule=zb-v", "parallel.virtual_stages=2"},
      {"parallel.schedule=interleaved", "parallel.virtual_stages=2"}};
  for (std::uint64_t seed = 0; seed < sweep(orders.size()); ++seed) {
    std::vector<std::string> order = orders[seed % orders.size()];
    order.emplace_back("parallel.pipeline=1");  // the search decides it
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + order.front());
    Draws draw(seed, "test/bounds");
    const std::int64_t world = 4;
    const config::Config drawn = config_of_world(draw, world, draw.chance(2) ? world : 1);
    const config::Config config =
        config::parse_config(config::config_to_toml(drawn), "test", order);
    const MeshChoice all = choose_mesh(config, random_world_profile(draw), world, MeshScope::kAll);
    for (const TriedMesh& tried : all.tried) {
      if (!tried.step_s) continue;
      EXPECT_LE(tried.bound_s, *tried.step_s) << mesh_text(tried.mesh);
      pipelines += tried.mesh.pipeline > 1;
    }
  }
  EXPECT_GT(pipelines, 10u);
}

// Where passes are slow and links fast, four stages of eight micro-batches have a bubble of 3 / 8.
TEST(MeshSearch, ABoundCountsTheBubble) {
  Draws draw(3, "test/bubble");
  const config::Config config = config_of_world(draw, 4, 4);
  planner::HardwareProfile hardware = random_world_profile(draw);
  hardware.cores = 64;  // the ranks of a node share them
  hardware.gemm_bf16_flops_per_s = hardware.gemm_f32_flops_per_s = 1e8;
  hardware.rank_links = planner::RankLinks{1e-9, 1e12, 0, 1e-9, 1e12, 0};
  std::map<std::int64_t, double> bounds_s;  // by pipeline ranks
  for (const TriedMesh& tried : choose_mesh(config, hardware, 4).tried) {
    if (tried.mesh.tensor == 1 && tried.mesh.zero == 0) {
      bounds_s[tried.mesh.pipeline] = tried.bound_s;
    }
  }
  EXPECT_GT(bounds_s.at(4), 1.3 * bounds_s.at(1));
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
