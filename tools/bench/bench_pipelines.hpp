// `sluice bench pipelines`: the bubbles of pipeline orders compared with their closed forms.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/schedule/orders/order_times.hpp"

namespace sluice::bench {

struct PipelineBenchOptions {
  std::int32_t ranks = 4;
  std::int32_t stages_each = 2;  // stages of each rank, in orders that take several
  std::int32_t microbatches = 8;
  schedule::PassTimes times;  // of one stage
  std::string order;          // only this one, with its lists; empty: all
  std::string file;           // an order in torch's CSV instead
};

// Runs the passes of each order on paper. Throws InputError for a file that holds no order that can
// run.
// {"event":"bench","name":"pipelines","figures":{ranks, stages_each, microbatches, forward,
//   backward_input, backward_weight, "orders":[{order, stages, bubble, closed_bubble, makespan,
//   in_flight and closed_in_flight by rank (null where no closed form holds), sums_in_order, and of
//   a single order csv}]}}
nlohmann::json run_pipelines_bench(const PipelineBenchOptions& options);

}  // namespace sluice::bench
