// The best mesh for a world on paper: how many of its ranks are data-parallel, tensor-parallel, and
// those of a pipeline, and which ZeRO stage the first have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/plan/prepare.hpp"

namespace sluice::train {

struct Mesh {
  std::int64_t data = 1, tensor = 1, pipeline = 1, zero = 0;
  std::int64_t ranks() const { return data * tensor * pipeline; }
  bool operator==(const Mesh&) const = default;
};
// "data 8, tensor 8, pipeline 64, zero 1"
std::string mesh_text(const Mesh& mesh);

// Every mesh of so many ranks, the longest pipelines last. A node has whole tensor groups.
std::vector<Mesh> meshes_of(std::int64_t world, std::int64_t node_ranks);
// The configuration on another mesh. Throws InputError where it cannot be.
config::Config with_mesh(const config::Config& config, const Mesh& mesh);

struct TriedMesh {
  Mesh mesh;
  double bound_s = 0;            // no plan of the mesh is faster
  std::optional<double> step_s;  // of its plan
  std::string why;               // there is no plan; empty if there is, or it could not be faster
  bool planned = false;          // it has a plan or a refusal of its own
};

struct MeshChoice {
  std::optional<Prepared> best;  // nothing fits
  std::vector<TriedMesh> tried;  // those that the configuration can have, by their bounds
  std::string refusal;  // of the mesh that lacks the fewest bytes, or of the first that has no plan
};

enum class MeshScope : std::uint8_t {
  kPossible,  // meshes whose bound is not below the best plan are left out
  kAll,
};

// Called for each mesh before it is planned. Precedes: the meshes before it in the order of bounds,
// of all that the configuration can have.
using MeshNotice = std::function<void(const TriedMesh& next, std::size_t precede, std::size_t of)>;

// Plans meshes in the order of their bounds, until no other can be faster. So the choice is that of
// a search through all of them. Settings that decide the order of sums stay as they are, and meshes
// that they do not go with are left out. Throws InputError if no mesh goes with the configuration.
MeshChoice choose_mesh(const config::Config& config, const planner::HardwareProfile& hardware,
                       std::int64_t world, MeshScope scope = MeshScope::kPossible,
                       const MeshNotice& notice = {});

// An array with an object for each mesh: data, tensor, pipeline, zero, bound_s, step_time_s or
// null, planned, why.
RunEvent meshes_json(const std::vector<TriedMesh>& tried);

}  // namespace sluice::train
