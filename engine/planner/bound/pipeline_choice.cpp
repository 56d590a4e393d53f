#include "engine/planner/bound/pipeline_choice.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "base/error.hpp"
#include "base/open_failure.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/parallel/server_order.hpp"
#include "engine/parallel/stages.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/schedule/compile/rank_share.hpp"
#include "engine/schedule/orders/check_order.hpp"
#include "engine/schedule/orders/order_csv.hpp"

namespace sluice::planner {
namespace {

using Schedule = config::Config::PipelineSchedule;

std::string ranks_text(const config::Config& config) {
  return "parallel.pipeline = " + std::to_string(config.parallel.pipeline);
}

std::string read_file(const std::string& path, const std::string& name) {
  constexpr std::uint64_t kMostBytes = 64 * kMiB;
  try {
    const PosixFile file = PosixFile::open_read(path);
    const std::uint64_t bytes = file.size_bytes();
    if (bytes > kMostBytes) throw InputError(name + " is larger than 64 MiB");
    std::string text(bytes, '\0');
    file.read_exact(0, std::as_writable_bytes(std::span(text)));
    return text;
  } catch (const IoError& error) {
    throw InputError(name + " cannot be read (" + open_failure(error) + "); it must name a file");
  }
}

// An order from a file must be one that can run and that has one rank's bits.
schedule::PipelineOrder read_order(const config::Config& config, std::int32_t microbatches) {
  const std::string& path = config.parallel.schedule_file;
  const std::string name = "parallel.schedule: '" + path + "'";
  const std::string text = read_file(path, name);
  schedule::PipelineOrder order;
  try {
    order = schedule::order_from_csv(text);
  } catch (const InputError& error) {
    throw InputError(name + ": " + error.what());
  }
  if (order.ranks() != config.parallel.pipeline) {
    throw InputError(name + " is an order of " + std::to_string(order.ranks()) + " ranks, and " +
                     ranks_text(config) +
                     "; set parallel.pipeline = " + std::to_string(order.ranks()));
  }
  if (order.microbatches != microbatches) {
    throw InputError(
        name + " is an order of " + std::to_string(order.microbatches) +
        " micro-batches, and each pipeline has " + std::to_string(microbatches) +
        "; set train.accumulate = " + std::to_string(order.microbatches * config.parallel.data));
  }
  const std::vector<std::string> problems = schedule::check_order(order);
  if (!problems.empty()) throw InputError(name + " cannot run: " + problems.front());
  if (const std::string problem = schedule::check_sum_order(order); !problem.empty()) {
    throw InputError(name + " cannot give the results of one rank: " + problem);
  }
  return order;
}

schedule::DelayRule delay_rule(const config::Config& config) {
  switch (config.parallel.schedule) {
    case Schedule::kPipeDream:
      return schedule::DelayRule::kStashing;
    case Schedule::kPipeDreamVsync:
      return schedule::DelayRule::kVerticalSync;
    case Schedule::kTwoBw:
      return schedule::DelayRule::kDoubleBuffered;
    default:
      throw InternalError("the schedule delays nothing");
  }
}

schedule::PipelineOrder delayed_order(const config::Config& config, std::int32_t microbatches) {
  const schedule::DelayRule rule = delay_rule(config);
  if (rule == schedule::DelayRule::kDoubleBuffered && microbatches < config.parallel.pipeline) {
    throw InputError("parallel.schedule = \"2bw\" needs as many micro-batches as " +
                     ranks_text(config) + " in each pipeline, and it has " +
                     std::to_string(microbatches) + "; set train.accumulate = " +
                     std::to_string(config.parallel.pipeline * config.parallel.data));
  }
  return schedule::make_delayed_order(rule, static_cast<std::int32_t>(config.parallel.pipeline),
                                      microbatches,
                                      static_cast<std::int32_t>(config.parallel.updates));
}

}  // namespace

void set_server_mode(const config::Config& config, schedule::RankView& view) {
  if (!config.parallel.has_server_order()) return;
  view.rotates = config.parallel.server_mode == config::Config::ServerMode::kRotating;
  if (view.rotates) return;
  view.arrivals =
      parallel::draw_arrivals(view.ranks, static_cast<std::int32_t>(config.parallel.updates),
                              static_cast<std::uint64_t>(config.train.seed));
}

schedule::PipelineOrder choose_order(const config::Config& config) {
  if (!has_order(config)) return {};
  if (config.parallel.has_server_order()) {
    schedule::RankView view;
    view.ranks = static_cast<std::int32_t>(config.parallel.data);
    set_server_mode(config, view);
    const std::int64_t rounds = view.rotates ? config.train.accumulate / config.parallel.data : 1;
    return parallel::make_server_order(view, static_cast<std::int32_t>(config.parallel.updates),
                                       static_cast<std::int32_t>(rounds));
  }
  const auto microbatches =
      static_cast<std::int32_t>(config.train.accumulate / config.parallel.data);
  if (config.parallel.schedule == Schedule::kCsv) return read_order(config, microbatches);
  if (config.parallel.delays_updates()) return delayed_order(config, microbatches);
  const auto kind = static_cast<schedule::OrderKind>(config.parallel.schedule);
  return schedule::make_order(kind, static_cast<std::int32_t>(config.parallel.pipeline),
                              static_cast<std::int32_t>(config.parallel.virtual_stages),
                              microbatches);
}

namespace {

// By stage: the most forward passes whose backward passes have not ended.
std::vector<std::uint64_t> in_flight_of_stages(const schedule::PipelineOrder& order) {
  std::vector<std::uint64_t> now(order.rank_of_stage.size()), most = now;
  for (const auto& list : order.actions) {
    for (const schedule::StageAction& action : list) {
      const auto stage = static_cast<std::size_t>(action.stage);
      if (action.kind == schedule::ActionKind::kForward) {
        most[stage] = std::max(most[stage], ++now[stage]);
      } else if (action.kind == schedule::ActionKind::kBackward ||
                 action.kind == schedule::ActionKind::kBackwardWeight) {
        --now[stage];
      }
    }
  }
  return most;
}

std::uint64_t state_bytes_of(const schedule::StepModel& model, std::int32_t unit) {
  const auto elems = [&](StateKind kind) {
    return schedule::home_range(model, kind, unit).elems();
  };
  return dtype_bytes(model.dtype) * elems(StateKind::kWeight) +
         sizeof(float) * elems(StateKind::kGradient) +
         optimizer_state_bytes(model, static_cast<std::size_t>(unit));
}

parallel::StageBytes stage_bytes(const schedule::StepModel& model,
                                 const schedule::PipelineOrder& order) {
  parallel::StageBytes bytes;
  for (const std::uint64_t in_flight : in_flight_of_stages(order)) {
    std::vector<std::uint64_t>& of_units = bytes.emplace_back();
    for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
      const schedule::UnitFootprint& footprint = model.units[unit];
      of_units.push_back(state_bytes_of(model, static_cast<std::int32_t>(unit)) +
                         in_flight * (footprint.output_bytes + footprint.saved_bytes));
    }
  }
  return bytes;
}

// The version that a micro-batch reads depends on the stage, so the cut decides the results and must
// not depend on the machine.
StageCut even_cut(std::size_t units, std::int32_t stages) {
  StageCut cut;
  std::int32_t begin = 0;
  for (std::int32_t stage = 1; stage <= stages; ++stage) {
    const auto end = static_cast<std::int32_t>(units) * stage / stages;
    cut.push_back({begin, end});
    begin = end;
  }
  return cut;
}

std::uint64_t most_bytes_of(const StageCut& cut, const parallel::StageBytes& bytes) {
  std::uint64_t most = 0;
  for (std::size_t stage = 0; stage < cut.size(); ++stage) {
    const auto begin = bytes[stage].begin();
    most = std::max(
        most, std::accumulate(begin + cut[stage].begin, begin + cut[stage].end, std::uint64_t{0}));
  }
  return most;
}

}  // namespace

std::vector<StageCut> stage_cuts(const config::Config& config, const schedule::StepModel& model,
                                 const schedule::PipelineOrder& order, CostModel& costs) {
  const std::size_t units = model.units.size();
  if (static_cast<std::size_t>(order.stages()) > units) {
    throw InputError("a pipeline of " + std::to_string(order.stages()) + " stages (" +
                     ranks_text(config) + ") needs as many units, and the model has " +
                     std::to_string(units) +
                     ": its layers, the embedding and the head; lower parallel.pipeline or "
                     "parallel.virtual_stages");
  }
  if (config.parallel.schedule == Schedule::kPipeDream) return {even_cut(units, order.stages())};
  std::vector<std::uint64_t> unit_ns;
  for (std::size_t unit = 0; unit < units; ++unit) {
    constexpr double kNsOfSecond = 1e9;
    const double seconds = costs.unit_s(static_cast<std::int32_t>(unit));
    unit_ns.push_back(static_cast<std::uint64_t>(std::llround(seconds * kNsOfSecond)));
  }
  std::vector<StageCut> cuts{parallel::cut_stages(unit_ns, order.stages())};
  const parallel::StageBytes bytes = stage_bytes(model, order);
  const std::uint64_t fastest = most_bytes_of(cuts.front(), bytes);
  const std::uint64_t least = parallel::least_stage_bytes(bytes);
  for (const std::uint64_t most : {least + (fastest - least) / 2, least}) {
    const std::optional<StageCut> cut = parallel::cut_stages_within(unit_ns, bytes, most);
    SLUICE_CHECK(cut.has_value());
    if (std::find(cuts.begin(), cuts.end(), *cut) == cuts.end()) cuts.push_back(*cut);
  }
  return cuts;
}

void check_stages(const std::vector<schedule::UnitRange>& stages,
                  const schedule::PipelineOrder& order, std::size_t units) {
  std::int32_t begin = 0;
  bool ascends = true;
  for (const schedule::UnitRange& stage : stages) {
    ascends = ascends && stage.begin == begin && stage.end > begin;
    begin = stage.end;
  }
  const bool whole = ascends && static_cast<std::size_t>(begin) == units;
  if (whole && stages.size() == static_cast<std::size_t>(order.stages())) return;
  throw InputError("the step options have other stages than this configuration's pipeline");
}

schedule::Recomputation cut_at_stages(schedule::Recomputation recompute,
                                      const std::vector<schedule::UnitRange>& stages) {
  const bool crosses = std::any_of(stages.begin(), stages.end(), [&](const auto& stage) {
    return recompute.drops_output(stage.end - 1);
  });
  if (!crosses) return recompute;
  // Segments within segments are given up, since the outer ones end elsewhere now.
  for (schedule::UnitRecompute& unit : recompute.units) {
    unit.output_run = std::min(unit.output_run, 1);
    unit.parts_run = 1;
  }
  for (const schedule::UnitRange& stage : stages) {
    recompute.units[static_cast<std::size_t>(stage.end - 1)].output_run = 0;
  }
  return recompute;
}

}  // namespace sluice::planner
