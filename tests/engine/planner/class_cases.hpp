// Worlds of ranks for the comparison of classes with all ranks: a mesh, and random settings and
// links.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/bound/pipeline_choice.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/rank_plans.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/merge.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/random_training.hpp"

namespace sluice::testing {

struct Mesh {
  std::int32_t data = 1, pipeline = 1, tensor = 1;
};

// Every mesh of 2 to `most` ranks.
inline std::vector<Mesh> meshes(std::int32_t most) {
  std::vector<Mesh> list;
  for (const std::int32_t tensor : {1, 2, 4}) {
    for (std::int32_t data = 1; data * tensor <= most; ++data) {
      for (std::int32_t pipeline = 1; data * tensor * pipeline <= most; ++pipeline) {
        if (data * tensor * pipeline > 1) list.push_back({data, pipeline, tensor});
      }
    }
  }
  return list;
}

// Nodes of any number of tensor groups, so that most meshes are cut unevenly by them.
inline planner::HardwareProfile random_world_profile(Draws& draw, std::int32_t tensor = 1) {
  planner::HardwareProfile hardware;
  const auto rate = [&](double least) {
    return least * std::exp2(static_cast<double>(draw.below(8000)) / 1000);
  };
  hardware.gemm_bf16_flops_per_s = rate(1e10);
  hardware.memory_bandwidth_bytes_per_s = rate(5e9);
  hardware.storage_read_bytes_per_s = rate(3e8);
  hardware.storage_write_bytes_per_s = rate(2e8);
  hardware.cores = draw.pick({1, 2, 7, 64});
  planner::RankLinks links;
  links.node_ranks = tensor * static_cast<std::int32_t>(draw.below(17));
  links.latency_s = 1 / rate(1e4);
  links.bytes_per_s = rate(1e8);
  links.node_bytes_per_s = draw.chance(3) ? 0 : rate(2e8);
  links.network_latency_s = 1 / rate(5e3);
  links.network_bytes_per_s = rate(5e7);
  hardware.rank_links = links;
  return hardware;
}

inline Overrides random_world(Draws& draw, const Mesh& mesh) {
  const auto rounds = static_cast<std::int64_t>(1 + draw.below(3));
  const bool two_stages = mesh.pipeline > 1 && mesh.pipeline <= 16 && draw.chance(4);
  const std::int64_t stages = mesh.pipeline * (two_stages ? 2 : 1);
  Overrides settings{
      draw.chance(2) ? "model.family=gpt2" : "model.family=llama",
      "model.hidden=64",
      "model.heads=4",
      setting("model.vocab", 300 + static_cast<std::int64_t>(draw.below(900))),
      setting("model.layers", std::max<std::int64_t>(stages, 1 + draw.below(4))),
      "train.seq=32",
      "train.steps=2",
      "train.micro_batch=1",
      setting("train.accumulate", rounds * mesh.data),
      setting("parallel.data", mesh.data),
      setting("parallel.pipeline", mesh.pipeline),
      setting("parallel.tensor", mesh.tensor),
      setting("parallel.zero", mesh.data > 1 ? static_cast<std::int64_t>(draw.below(4)) : 0),
      draw.chance(2) ? "recompute.policy=none" : "recompute.policy=unit",
      "train.threads=1",
      "memory.device=1GiB",
      "memory.pinned=1GiB",
      "memory.storage=1GiB"};
  if (mesh.pipeline > 1) {
    settings.push_back(
        std::string("parallel.schedule=") +
        (two_stages ? draw.pick({"interleaved", "zb-v"}) : draw.pick({"gpipe", "1f1b", "zb-h1"})));
  }
  if (two_stages) settings.emplace_back("parallel.virtual_stages=2");
  if (mesh.data > 1 && rounds < 3 && draw.chance(3)) {
    settings.push_back(setting("train.fold_groups", mesh.data));
  }
  if (draw.chance(3)) settings.emplace_back("memory.place.optimizer=storage");
  if (draw.chance(3)) settings.emplace_back("model.tie_embeddings=false");
  return settings;
}

// All ranks of a plan, each with its own list: the reference.
struct AllRanks {
  std::vector<planner::RankFigures> figures;
  std::vector<std::string> waits;  // the instructions that each one of a rank's list waits for
  double step_s = 0;
};

inline schedule::StepModel step_of_plan(const config::Config& config, const planner::Plan& plan) {
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
  schedule::StepModel step =
      planner::make_step_model(model, config::batch_shape(config),
                               config::parameter_table(config, model), *kernels, *kernels);
  step.view = plan.view;
  step.pipeline = plan.pipeline;
  return step;
}

inline AllRanks all_ranks(const config::Config& config, const planner::Plan& plan,
                          const planner::HardwareProfile& hardware) {
  const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
  const model::BatchShape batch = config::batch_shape(config);
  planner::CostModel costs(config, model, batch, hardware);
  const schedule::StepModel step = step_of_plan(config, plan);
  AllRanks all;
  std::vector<schedule::Schedule> lists;
  for (std::int32_t rank = 0; rank < plan.world_ranks(); ++rank) {
    const schedule::StepModel of_rank = planner::step_of_rank(step, rank);
    const schedule::StepSchedules schedules = schedule::compile_all(of_rank, plan.options);
    runtime::MemoryNeed need =
        runtime::memory_need(schedules.of(plan.options), runtime::StateStore::kWindowBytes);
    need.fixed = plan.need.fixed;
    lists.push_back(schedules[schedule::StepKind::kTraining]);
    std::string& waits = all.waits.emplace_back();
    for (const schedule::Instruction& instruction : lists.back().instructions) {
      for (const schedule::InstructionId dep : instruction.deps) waits += std::to_string(dep) + ' ';
      waits += '\n';
    }
    all.figures.push_back(planner::figures_of(lists.back(), costs.links()));
    all.figures.back().peak_bytes = need.peak_bytes();
  }
  // A search may state a larger need than that of the first rank's lists, for all ranks or by
  // classes.
  all.figures.front().peak_bytes = plan.need.peak_bytes();
  schedule::Schedule world = schedule::merge(lists);
  costs.apply(world);
  std::vector<schedule::InstructionTimes> times;
  all.step_s = schedule::simulate(world, costs.simulation_model(), nullptr, 0, &times).total_s;
  std::map<std::int32_t, std::pair<double, double>> spans;
  for (const schedule::Instruction& instruction : world.instructions) {
    if (instruction.op > schedule::Op::kLoss) continue;
    const schedule::InstructionTimes& at = times[instruction.id];
    const auto [found, fresh] =
        spans.try_emplace(instruction.rank, std::pair(at.begin_s, at.end_s));
    found->second = {std::min(found->second.first, at.begin_s),
                     std::max(found->second.second, at.end_s)};
    all.figures[static_cast<std::size_t>(instruction.rank)].compute_s += at.end_s - at.begin_s;
  }
  for (const auto& [rank, span] : spans) {
    all.figures[static_cast<std::size_t>(rank)].span_s = span.second - span.first;
  }
  return all;
}

// The plan speaks of the class that ends last and of the one that needs most, and each class's
// shares add up to the step.
inline void expect_job(const planner::Plan& plan) {
  const double total_s = plan.simulation.total_s;
  EXPECT_NEAR(plan.critical_path.total_s(), total_s, 1e-6 * total_s);
  EXPECT_NEAR(plan.ranks[plan.slowest].end_s, total_s, 1e-9 * total_s);
  EXPECT_EQ(plan.of_fullest().peak_bytes, plan.ranks[plan.fullest].peak_bytes);
  for (const planner::RankFigures& figures : plan.ranks) {
    EXPECT_NEAR(figures.shares.total_s(), total_s, 1e-6 * total_s);
    EXPECT_NEAR(figures.shares.passes_s, figures.compute_s, 1e-6 * total_s);
    EXPECT_GE(figures.shares.messages_s, 0);
    EXPECT_FALSE(plan.ranks[plan.fullest].peak_bytes < figures.peak_bytes);
  }
}

// Plans the mesh by classes and compares every rank with its class. Returns the number of classes.
inline std::size_t expect_classes_equal_all_ranks(const TrainingBench& bench, std::uint64_t seed,
                                                  const Mesh& mesh) {
  Draws draw(seed, "test/rank-classes");
  const Overrides settings = random_world(draw, mesh);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + ::testing::PrintToString(settings));
  const config::Config config = bench.config("run", settings);
  const planner::HardwareProfile hardware = random_world_profile(draw, mesh.tensor);
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  auto result = planner::make_plan(
      config, model::Model(config::model_shape(config), config::tensor_share(config, 0)), *kernels,
      hardware, nullptr, planner::WorldScope::kClasses);
  const auto* plan = std::get_if<planner::Plan>(&result);
  if (plan == nullptr) {
    ADD_FAILURE() << std::get<planner::Refusal>(result).sentence();
    return 0;
  }
  const planner::RankClasses classes =
      planner::classify_ranks(step_of_plan(config, *plan), planner::sums_by_place(config),
                              hardware.rank_links_or_default());
  EXPECT_EQ(plan->ranks.size(), static_cast<std::size_t>(classes.count()));
  const AllRanks all = all_ranks(config, *plan, hardware);
  const auto near = [&](double one, double other) {
    return std::abs(one - other) <= 1e-12 * std::max(one, other);
  };
  EXPECT_TRUE(near(plan->simulation.total_s, all.step_s))
      << plan->simulation.total_s << " " << all.step_s;
  expect_job(*plan);
  for (std::int32_t rank = 0; rank < plan->world_ranks(); ++rank) {
    const planner::RankFigures& own = all.figures[static_cast<std::size_t>(rank)];
    const planner::RankFigures& of_class =
        plan->ranks[static_cast<std::size_t>(classes.class_of(rank))];
    // The parts of a sum in a tensor group differ by an element; the class has those of the first
    // rank.
    const bool first_of_group = rank % mesh.tensor == 0;
    EXPECT_EQ(all.waits[static_cast<std::size_t>(rank)],
              all.waits[static_cast<std::size_t>(classes.world_rank_of(classes.class_of(rank)))])
        << "rank " << rank << " waits for others than the first of its class";
    const bool same_bytes = own.sent == of_class.sent && own.links == of_class.links;
    const bool same = own.peak_bytes == of_class.peak_bytes &&
                      own.state_bytes == of_class.state_bytes && (same_bytes || !first_of_group) &&
                      own.received_bytes == of_class.received_bytes &&
                      own.received_stages_bytes == of_class.received_stages_bytes &&
                      near(own.span_s, of_class.span_s) && near(own.compute_s, of_class.compute_s);
    EXPECT_TRUE(same) << "rank " << rank << ": " << own.peak_bytes[0] << " "
                      << of_class.peak_bytes[0] << ", " << own.peak_bytes[1] << " "
                      << of_class.peak_bytes[1] << ", span " << own.span_s << " " << of_class.span_s
                      << ", compute " << own.compute_s << " " << of_class.compute_s << ", links "
                      << own.links.node << " " << of_class.links.node << ", " << own.links.network
                      << " " << of_class.links.network;
    if (!same) break;
  }
  return plan->ranks.size();
}

}  // namespace sluice::testing
