// Branch and bound over the meshes of a world. A bound takes milliseconds: even shares of the
// passes, the way of a micro-batch through the pipeline, and the traffic of data-parallel ranks.
// Planning a mesh takes up to seconds. So meshes are planned in the order of their bounds, and the
// search ends with the first bound that the best plan has reached. Two are planned at once. If the
// first of them rules the second out, the second counts as not planned, so the outcome is that of
// one after another.
#include "engine/train/plan/mesh_search.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/price/tier_bytes.hpp"

namespace sluice::train {
namespace {

constexpr std::size_t kAtOnce = 2;  // meshes

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

struct Planned {
  std::optional<Prepared> prepared;  // nothing: the step is too long, or the order cannot be
  std::string why;
  std::exception_ptr failure;
};

Planned plan_of(const Candidate& candidate, const planner::HardwareProfile& hardware) {
  Planned planned;
  try {
    planned.prepared =
        prepare_with(candidate.config, hardware, make_described_backend(candidate.config, hardware),
                     planner::WorldScope::kClasses);
  } catch (const InputError& error) {
    planned.why = error.what();
  } catch (...) {
    planned.failure = std::current_exception();
  }
  return planned;
}

// Stages 1 and 2 differ in nothing: both keep shards of gradients. Returns the mesh of stage 1 that
// was planned in place of one of stage 2; null: there is none.
const TriedMesh* planned_before(const std::vector<TriedMesh>& tried, const Mesh& mesh) {
  if (mesh.zero != 2) return nullptr;
  const auto found = std::find_if(tried.begin(), tried.end(), [&](const TriedMesh& other) {
    return other.mesh == Mesh{mesh.data, mesh.tensor, mesh.pipeline, 1};
  });
  return found != tried.end() && (found->step_s || !found->why.empty()) ? &*found : nullptr;
}

// Plans all of them at once, each on a thread; where none can be started, on this one.
std::vector<Planned> plans_of(std::span<const Candidate> candidates,
                              const planner::HardwareProfile& hardware) {
  std::vector<Planned> plans(candidates.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto plan = [&, i] { plans[i] = plan_of(candidates[i], hardware); };
    try {
      if (i + 1 < candidates.size()) threads.push_back(start_thread("mesh", plan));
    } catch (const ThreadError&) {
      plan();
    }
    if (i + 1 == candidates.size()) plan();
  }
  return plans;
}

// Takes a plan into the choice, if it is the fastest so far.
void take(MeshChoice& choice, TriedMesh& tried, Planned planned, std::uint64_t& least_missing) {
  if (planned.failure) std::rethrow_exception(planned.failure);
  tried.why = planned.why;
  tried.planned = true;
  if (!planned.prepared) {
    if (choice.refusal.empty()) choice.refusal = mesh_text(tried.mesh) + ": " + tried.why;
    return;
  }
  if (const planner::Plan* plan = planned.prepared->plan()) {
    tried.step_s = plan->step_s();
    const bool faster = !choice.best || *tried.step_s < choice.best->plan()->step_s();
    if (faster) choice.best = std::move(planned.prepared);
    return;
  }
  const planner::Refusal& refusal = *planned.prepared->refusal();
  tried.why = refusal.sentence();
  const std::uint64_t missing = missing_bytes(refusal);
  if (missing < least_missing) choice.refusal = mesh_text(tried.mesh) + ": " + tried.why;
  least_missing = std::min(least_missing, missing);
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
  std::vector<std::string> settings = config::mesh_settings(config);
  settings.insert(settings.end(), {setting("data", mesh.data), setting("tensor", mesh.tensor),
                                   setting("pipeline", mesh.pipeline), setting("zero", mesh.zero),
                                   setting("context", 1)});
  config::Config result = config::parse_config(config::config_to_toml(config), "--mesh", settings);
  config::check_supported(result);
  return result;
}

MeshChoice choose_mesh(const config::Config& config, const planner::HardwareProfile& hardware,
                       std::int64_t world, MeshScope scope, const MeshNotice& notice) {
  MeshChoice choice;
  std::uint64_t least_missing = std::numeric_limits<std::uint64_t>::max();
  std::vector<Candidate> candidates = candidates_of(config, hardware, world);
  const auto may_be_faster = [&](const Candidate& candidate) {
    return scope == MeshScope::kAll || !choice.best ||
           candidate.tried.bound_s < choice.best->plan()->step_s();
  };
  for (std::size_t next = 0; next < candidates.size();) {
    TriedMesh& first = candidates[next].tried;
    const TriedMesh* twin =
        scope == MeshScope::kAll ? nullptr : planned_before(choice.tried, first.mesh);
    if (twin != nullptr) {
      first.step_s = twin->step_s;
      first.why = twin->why;
    }
    if (twin != nullptr || !may_be_faster(candidates[next])) {
      choice.tried.push_back(std::move(first));
      ++next;
      continue;
    }
    std::size_t end = next;
    const auto joins = [&](std::size_t at) {
      const bool has_twin = scope == MeshScope::kPossible && candidates[at].tried.mesh.zero == 2;
      return at < next + kAtOnce && may_be_faster(candidates[at]) && (at == next || !has_twin);
    };
    for (; end < candidates.size() && joins(end); ++end) {
      if (notice) notice(candidates[end].tried, end, candidates.size());
    }
    for (Planned& planned : plans_of(std::span(candidates).subspan(next, end - next), hardware)) {
      Candidate& candidate = candidates[next++];
      if (may_be_faster(candidate)) {
        take(choice, candidate.tried, std::move(planned), least_missing);
      }
      choice.tried.push_back(std::move(candidate.tried));
    }
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
                    {"planned", one.planned},
                    {"why", one.why}});
  }
  return list;
}

}  // namespace sluice::train
