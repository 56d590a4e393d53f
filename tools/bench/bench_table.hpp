// Formats the figures of a bench as a table; --json prints all of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::bench {

// event: the result of one of the run_*_bench functions.
std::string bench_table(const nlohmann::json& event);

}  // namespace sluice::bench
