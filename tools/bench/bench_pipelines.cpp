#include "tools/bench/bench_pipelines.hpp"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/schedule/orders/check_order.hpp"
#include "engine/schedule/orders/closed_forms.hpp"
#include "engine/schedule/orders/message_order.hpp"
#include "engine/schedule/orders/order_csv.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;
using schedule::OrderKind;
using schedule::PipelineOrder;

json measured(const PipelineOrder& order, const schedule::PassTimes& times) {
  const schedule::OrderTimes simulated = schedule::time_order(order, times);
  return {{"stages", order.stages()},
          {"bubble", simulated.bubble()},
          {"closed_bubble", nullptr},
          {"makespan", simulated.makespan},
          {"in_flight", schedule::most_in_flight(order)},
          {"sums_in_order", schedule::check_sum_order(order).empty()}};
}

json with_lists(json figures, const PipelineOrder& order) {
  figures["csv"] = schedule::order_to_csv(schedule::list_messages(order));
  return figures;
}

PipelineOrder imported(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw InputError(file + ": cannot read this file");
  PipelineOrder order;
  try {
    order = schedule::order_from_csv(text);
  } catch (const InputError& error) {
    throw InputError(file + ": " + error.what());
  }
  const std::vector<std::string> problems = schedule::check_order(order);
  if (!problems.empty()) throw InputError(file + ": " + problems.front());
  return order;
}

}  // namespace

json run_pipelines_bench(const PipelineBenchOptions& options) {
  json list = json::array();
  json figures{{"ranks", options.ranks},
               {"stages_each", options.stages_each},
               {"microbatches", options.microbatches},
               {"forward", options.times.forward},
               {"backward_input", options.times.backward_input},
               {"backward_weight", options.times.backward_weight}};
  if (!options.file.empty()) {
    const PipelineOrder order = imported(options.file);
    figures["ranks"] = order.ranks();
    figures["stages_each"] = order.stages() / order.ranks();
    figures["microbatches"] = order.microbatches;
    json of = with_lists(measured(order, options.times), order);
    of["order"] = options.file;
    list.push_back(std::move(of));
  }
  for (std::size_t k = 0; k < schedule::kOrderKindCount && options.file.empty(); ++k) {
    const auto kind = static_cast<OrderKind>(k);
    const std::string name(schedule::order_name(kind));
    if (!options.order.empty() && options.order != name) continue;
    const bool several = schedule::takes_several_stages(kind);
    const schedule::PipelineShape shape{kind, options.ranks, several ? options.stages_each : 1,
                                        options.microbatches};
    const PipelineOrder order =
        schedule::make_order(kind, shape.ranks, shape.stages_each, shape.microbatches);
    json of = measured(order, options.times);
    const std::optional<std::int64_t> closed = schedule::closed_bubble(shape, options.times);
    if (closed) of["closed_bubble"] = *closed;
    of["closed_in_flight"] = json::array();
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const std::optional<std::int32_t> most = schedule::closed_in_flight(shape, rank);
      of["closed_in_flight"].push_back(most ? json(*most) : json());
    }
    if (!options.order.empty()) of = with_lists(std::move(of), order);
    of["order"] = name;
    list.push_back(std::move(of));
  }
  if (list.empty()) throw InputError("bench: no order is called " + options.order);
  figures["orders"] = std::move(list);
  return {{"event", "bench"}, {"name", "pipelines"}, {"figures", std::move(figures)}};
}

}  // namespace sluice::bench
