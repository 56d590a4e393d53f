// `sluice bench plan --ranks`: ZeRO-3 compared with its limits, compute alone and traffic alone.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

// Plans a Llama of 6.74 B parameters with ZeRO-3 on 8 ranks, each with 400 TFLOP/s and a link of 50
// GB/s in each direction, with 16,384 and with 4,096 tokens for each rank. Runs nothing.
// [{tokens, ranks, step_s, compute_s, comm_s (of the plan), traffic_s (with two gathers of each
//   unit), over (step_s / max(compute_s, traffic_s) - 1), ordered_s (the least that the order of
//   passes allows: gathers do not run after the loss, exchanges not before it), sent_bytes,
//   cpu_s}]
nlohmann::json measure_rank_plans();

}  // namespace sluice::bench
