// Gradients of groups and meshes compared with those of one rank, and files that one mesh writes
// and another reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/posix_file.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::testing {

inline const Overrides kRing{"parallel.context_attention=ring"};

// The first moments after one step, which are its gradients but for a factor.
inline std::vector<float> gradients_of(const config::Config& config, const std::string& path) {
  const planner::Plan plan = plan_of_world(config);
  train_on_ranks(config, plan.options, 1, {}, -1, {},
                 [&](train::Session& session) { session.state().save(path); });
  const checkpoint::SafetensorsReader reader(path);
  std::vector<float> all;
  for (const checkpoint::SafetensorsTensor& tensor : reader.tensors()) {
    if (!tensor.name.starts_with("moment1.")) continue;
    std::vector<float> values(tensor.bytes() / sizeof(float));
    reader.read(tensor, 0, std::as_writable_bytes(std::span(values)));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2.0);
  }
  return std::sqrt(squares);
}

// In bf16 a group is hardly farther from one rank in fp32 than one rank in bf16 is.
// every: of the meshes, each so many of them; neighbouring models have others.
inline constexpr std::size_t kBf16Models = 4;
inline void expect_near_in_bf16(std::size_t number, std::size_t every) {
  const ScratchDirectory files;
  const std::vector<Overrides> models{
      {"model.family=gpt2"},
      {"model.family=llama"},
      {"model.family=gpt2", "model.tie_embeddings=false", "model.vocab=277"},
      {"model.family=llama", "model.tie_embeddings=false", "model.kv_heads=2", "model.vocab=277"}};
  const Overrides& model = models.at(number);
  const Overrides settings = model + Overrides{"train.micro_batch=1", "train.accumulate=4"};
  const auto run = [&](const char* precision, const Overrides& mesh) {
    const TrainingBench bench;
    const config::Config config =
        bench.config("run", tensor_model() + settings + Overrides{precision} + mesh);
    return gradients_of(config, files / "state");
  };
  const std::vector<float> exact = run("train.precision=fp32", {});
  const double own = distance(run("train.precision=bf16", {}), exact);
  EXPECT_GT(own, 0);
  std::vector<Overrides> meshes{{"parallel.tensor=2"},
                                {"parallel.tensor=4"},
                                {"parallel.tensor=2", "parallel.sequence=true"},
                                {"parallel.tensor=4", "parallel.sequence=true"},
                                {"parallel.context=2"},
                                kRing + Overrides{"parallel.context=2"},
                                kRing + Overrides{"parallel.context=4"}};
  const bool grouped = std::find(model.begin(), model.end(), "model.kv_heads=2") != model.end();
  if (!grouped) meshes.push_back({"parallel.context=4"});
  for (std::size_t i = number % every; i < meshes.size(); i += every) {
    const Overrides& mesh = meshes[i];
    SCOPED_TRACE(::testing::PrintToString(model) + ", " + ::testing::PrintToString(mesh));
    EXPECT_LE(distance(run("train.precision=bf16", mesh), exact), 1.5 * own);
  }
}

// Weights and optimizer state of any mesh are the same elements on any other: its file is written
// again to the byte. every: of the pairs, each so many of them.
inline void expect_equal_states(std::size_t from, std::size_t every) {
  const ScratchDirectory files;
  const std::vector<TensorMesh>& meshes = resharded_meshes();
  const Overrides model{from % 2 == 0 ? "model.family=gpt2" : "model.family=llama",
                        from % 3 == 0 ? "train.precision=bf16" : "train.precision=fp32",
                        from % 3 == 1 ? "model.kv_heads=2" : "model.kv_heads=4",
                        from % 2 == 1 ? "optimizer.moments=bf16" : "optimizer.moments=fp32",
                        "model.vocab=277"};
  write_state(meshes[from], model, 2, "", files / "made");
  for (std::size_t to = 0; to < meshes.size(); ++to) {
    if ((from + to) % every != 1 % every) continue;
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    write_state(meshes[to], model, 0, files / "made", files / "again");
    EXPECT_EQ(hash_file(files / "again"), hash_file(files / "made"));
  }
}

// One rank; groups of two and of four, with shards and with stages; parts of sequences.
inline std::vector<std::size_t> committing_meshes() {
  return {0, 1, 5, 6, 8};
}
// Durable commits, too: groups of another size read the slices that their parts consist of.
inline void expect_equal_commits(std::size_t from, std::size_t every) {
  const ScratchDirectory files;
  const std::vector<TensorMesh>& meshes = resharded_meshes();
  const Overrides model{from % 2 == 0 ? "model.family=gpt2" : "model.family=llama",
                        from % 3 == 0 ? "train.precision=fp32" : "train.precision=bf16",
                        from % 3 == 1 ? "model.kv_heads=2" : "model.kv_heads=4",
                        from % 4 == 1 ? "optimizer.states=split" : "optimizer.states=fp32",
                        "model.vocab=277"};
  const TrainingBench bench;
  const Overrides durable = model + Overrides{"checkpoint.mode=durable"};
  commit_state(bench, meshes[from], durable, files / "made");
  const checkpoint::DurableFound found = find_commit(config_of_mesh(bench, meshes[from], durable));
  for (std::size_t to = 0; to < meshes.size(); ++to) {
    if ((from + to) % every != 1 % every) continue;
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    load_commit(found, meshes[to], to % 2 == 0 ? durable : model, files / "again");
    EXPECT_EQ(hash_file(files / "again"), hash_file(files / "made"));
  }
}

}  // namespace sluice::testing
