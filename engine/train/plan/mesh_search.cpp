// Branch and bound over the meshes of a world. A bound takes milliseconds: even shares of the passes,
// the way of a micro-batch through the pipeline, and the traffic of data-parallel ranks. Planning a
// mesh takes up to seconds. So meshes are planned in the order of their bounds, and the search ends
// with the first bound that the best plan has reached.
#include "engine/train/plan/mesh_search.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/tier_bytes.hpp"

namespace sluice::train {
namespace {

struct Candidate {
  TriedMesh tried;
  config::Config config;
};

void check_stages(const config::Config& config, const model::Model& model) {
  const std::int64_t stages = config.parallel.pipeline * config.parallel.virtual_stages;
  if (stages <= static_cast<std::int64_t>(model.units().size())) return;
  throw InputError(std::to_string(stages) + " stages need as many units, and the model has " +
                   std::to_string(model.units().size()));
}

// Sorted by bound. Left out: meshes that the configuration cannot have.
std::vector<Candidate> candidates_of(const config::Config& config,
                                     const planner::HardwareProfile& hardware, std::int64_t world) {
  std::vector<Candidate> list;
  std::string problem;
  const planner::RankLinks links = hardware.rank_links_or_default();
  const std::int32_t node_ranks = links.ranks_of_node(static_cast<std::int32_t>(world));
  for (const Mesh& mesh : meshes_of(world, node_ranks)) {
    try {
      Candidate candidate;
      candidate.tried.mesh = mesh;
      candidate.config = settle_described(with_mesh(config, mesh), hardware);
      const model::Model model(config::model_shape(candidate.config),
                               config::tensor_share(candidate.config, 0));
      check_stages(candidate.config, model);
      const Backend backend = make_described_backend(candidate.config, hardware);
      candidate.tried.bound_s = planner::least_step_s(
          candidate.config, model, *backend.device_kernels, hardware, backend.host_kernels.get());
      list.push_back(std::move(candidate));
    } catch (const InputError& error) {
      problem = error.what();
    }
  }
  if (list.empty()) {
    throw InputError("--mesh: no mesh of " + std::to_string(world) +
                     " ranks goes with this configuration; the last one: " + problem);
  }
  std::stable_sort(list.begin(), list.end(), [](const Candidate& one, const Candidate& other) {
    return one.tried.bound_s < other.tried.bound_s;
  });
  return list;
}

std::uint64_t missing_bytes(const planner::Refusal& refusal) {
  const planner::TierBytes missing = planner::beyond(refusal.needed_bytes, refusal.available_bytes);
  return std::accumulate(missing.begin(), missing.end(), std::uint64_t{0});
}

// Nothing where the step is too long to plan, or the order of the pipeline cannot be.
std::optional<Prepared> planned(Candidate& candidate, const planner::HardwareProfile& hardware) {
  try {
    return prepare_with(candidate.config, hardware,
                        make_described_backend(candidate.config, hardware),
                        planner::WorldScope::kClasses);
  } catch (const InputError& error) {
    candidate.tried.why = error.what();
    return std::nullopt;
  }
}

}  // namespace

std::string mesh_text(const Mesh& mesh) {
  return "data " + std::to_string(mesh.data) + ", tensor " + std::to_string(mesh.tensor) +
         ", pipeline " + std::to_string(mesh.pipeline) + ", zero " + std::to_string(mesh.zero);
}

std::vector<Mesh> meshes_of(std::int64_t world, std::int64_t node_ranks) {
  std::vector<Mesh> list;
  for (std::int64_t pipeline = 1; pipeline <= world; ++pipeline) {
    if (world % pipeline != 0) continue;
    const std::int64_t of_stage = world / pipeline;
    for (std::int64_t tensor = 1; tensor <= of_stage; ++tensor) {
      if (of_stage % tensor != 0 || node_ranks % tensor != 0) continue;
      const std::int64_t data = of_stage / tensor;
      for (std::int64_t zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
        list.push_back({data, tensor, pipeline, zero});
      }
    }
  }
  return list;
}

config::Config with_mesh(const config::Config& config, const Mesh& mesh) {
  const auto setting = [](const char* key, std::int64_t value) {
    return std::string("parallel.") + key + "=" + std::to_string(value);
  };
  const std::vector<std::string> settings{
      setting("data", mesh.data), setting("tensor", mesh.tensor),
      setting("pipeline", mesh.pipeline), setting("zero", mesh.zero), setting("context", 1)};
  config::Config result = config::parse_config(config::config_to_toml(config), "--mesh", settings);
  config::check_supported(result);
  return result;
}

MeshChoice choose_mesh(const config::Config& config, const planner::HardwareProfile& hardware,
                       std::int64_t world, MeshScope scope, const MeshNotice& notice) {
  MeshChoice choice;
  double best_s = std::numeric_limits<double>::infinity();
  std::uint64_t least_missing = std::numeric_limits<std::uint64_t>::max();
  std::vector<Candidate> candidates = candidates_of(config, hardware, world);
  for (Candidate& candidate : candidates) {
    TriedMesh& tried = candidate.tried;
    const bool may_be_faster = tried.bound_s < best_s;
    if (may_be_faster || scope == MeshScope::kAll) {
      if (notice) notice(tried, choice.tried.size(), candidates.size());
      std::optional<Prepared> prepared = planned(candidate, hardware);
      if (prepared && prepared->plan() != nullptr) {
        tried.step_s = prepared->plan()->step_s();
        if (*tried.step_s < best_s) {
          best_s = *tried.step_s;
          choice.best = std::move(prepared);
        }
      } else if (prepared) {
        tried.why = prepared->refusal()->sentence();
        const std::uint64_t missing = missing_bytes(*prepared->refusal());
        if (missing < least_missing) choice.refusal = mesh_text(tried.mesh) + ": " + tried.why;
        least_missing = std::min(least_missing, missing);
      }
    }
    choice.tried.push_back(std::move(tried));
  }
  return choice;
}

RunEvent meshes_json(const std::vector<TriedMesh>& tried) {
  RunEvent list = RunEvent::array();
  for (const TriedMesh& one : tried) {
    list.push_back({{"data", one.mesh.data},
                    {"tensor", one.mesh.tensor},
                    {"pipeline", one.mesh.pipeline},
                    {"zero", one.mesh.zero},
                    {"bound_s", one.bound_s},
                    {"step_time_s", one.step_s ? RunEvent(*one.step_s) : RunEvent(nullptr)},
                    {"why", one.why}});
  }
  return list;
}

}  // namespace sluice::train
