#include "engine/train/world_plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/choice/options_text.hpp"
#include "engine/planner/world_digest.hpp"
#include "engine/train/world_events.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice::train {

// The options are one line.
std::string plan_message(const Prepared& prepared) {
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  return planner::options_text(plan.options) + "\n" + config::config_to_toml(prepared.config);
}

namespace {

// Shards differ by one block, so another rank may need a little more than the first.
void check_budgets(const config::Config& config, const planner::Plan& plan) {
  const planner::TierBytes budgets{config.memory.device_bytes, config.memory.pinned_bytes,
                                   config.memory.storage_bytes};
  for (const Tier tier : kTiers) {
    const auto at = static_cast<std::size_t>(tier);
    if (plan.peak_bytes[at] <= budgets[at]) continue;
    const std::string name(tier_name(tier));
    throw InputError("memory." + name + " = " + format_bytes_exact(budgets[at]) +
                     " fits rank 0's plan and not this rank's, which needs " +
                     format_bytes_exact(plan.peak_bytes[at]) + "; raise it to that");
  }
}

}  // namespace

Prepared prepare_rank(const std::string& message, int rank, const DeviceShare& share) {
  const std::size_t end = message.find('\n');
  SLUICE_CHECK(end != std::string::npos);
  const config::Config config =
      config::parse_config(message.substr(end + 1), "the configuration of rank 0");
  Prepared prepared{config,
                    planner::load_profile_or_default(planner::default_profile_path()),
                    make_backend(config, share),
                    model::Model(config::model_shape(config), config::tensor_share(config, rank)),
                    planner::Refusal{},
                    {}};
  prepared.result =
      planner::plan_rank(prepared.config, prepared.model, *prepared.backend.device_kernels,
                         prepared.hardware, planner::options_from_text(message.substr(0, end)),
                         static_cast<std::int32_t>(rank), prepared.backend.host_kernels.get());
  check_budgets(prepared.config, *prepared.plan());
  return prepared;
}

void check_plans(World& world, const Prepared& prepared) {
  if (world.alone()) return;
  world.check_equal(
      "the arithmetic",
      {{"arithmetic", "'" + std::string(prepared.backend.device_kernels->arithmetic()) + "'"}},
      "use machines whose products round alike");
  world.check_equal(
      "the collectives",
      {{"a step with the digest",
        planner::world_digest(std::get<planner::Plan>(prepared.result), prepared.config)}},
      "please report this with the configuration");
}

bool share_processors(World& world) {
  if (world.alone()) return false;
  const std::vector<std::string> places =
      world.gather("the processors of the ranks", host_name() + '\n' + usable_processors());
  const std::string host = places.front().substr(0, places.front().find('\n') + 1);
  return std::all_of(places.begin(), places.end(), [&](const std::string& place) {
    return !place.starts_with(host) || place == places.front();
  });
}

DeviceShare share_gpus(World& world, const config::Config& config) {
  DeviceShare share;
  if (world.alone() || config.memory.backend != config::Config::Backend::kCuda) return share;
  share.local_rank = world.local_rank();
  const std::vector<std::string> gpus =
      world.gather("the GPUs of the ranks", host_name() + '\n' + find_gpu_of(share.local_rank));
  const std::vector<std::string> obstacles =
      world.gather("the transport of GPUs", world.gpu_group_obstacle());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto sharing = static_cast<int>(std::count(gpus.begin(), gpus.end(), gpus[rank]));
    share.ranks = std::max(share.ranks, sharing);
    const std::string name = world.describe(static_cast<int>(rank));
    if (!share.nccl_obstacle.empty()) continue;
    if (sharing > 1) {
      share.nccl_obstacle = name + " shares the GPU " +
                            gpus[rank].substr(gpus[rank].find('\n') + 1) +
                            " with another, and NCCL needs one for each";
    } else if (!obstacles[rank].empty()) {
      share.nccl_obstacle = name + ": " + obstacles[rank];
    }
  }
  return share;
}

namespace {

void settle_transport(const DeviceShare& share, config::Config& config) {
  using Transport = config::Config::Transport;
  if (config.memory.backend != config::Config::Backend::kCuda) {
    if (config.parallel.transport == Transport::kAuto) return;
    throw InputError(
        "parallel.transport says how the memory of GPUs travels, and these ranks run on the host; "
        "name memory.backend = \"cuda\", or leave parallel.transport out");
  }
  const bool joined = share.nccl_obstacle.empty();
  if (config.parallel.transport == Transport::kNccl && !joined) {
    throw InputError("parallel.transport = \"nccl\" cannot be had: " + share.nccl_obstacle +
                     "; use \"gloo\" or \"auto\"");
  }
  if (config.parallel.transport == Transport::kAuto) {
    config.parallel.transport = joined ? Transport::kNccl : Transport::kGloo;
  }
}

}  // namespace

void settle_for_ranks(const World& world, bool divides, const DeviceShare& share,
                      config::Config& config) {
  if (config.memory.backend == config::Config::Backend::kAuto) {
    config.memory.backend = config::Config::Backend::kHost;
  }
  settle_transport(share, config);
  if (config.train.threads > 0) return;
  const std::int64_t usable = kernels::host::Parallel::default_threads();
  config.train.threads =
      divides ? std::max<std::int64_t>(1, usable / world.ranks_on_node()) : usable;
}

}  // namespace sluice::train
