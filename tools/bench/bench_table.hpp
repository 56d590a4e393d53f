// The figures of a bench as a table for people; --json gives all of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::bench {

// event: what run_adam_bench, run_allocator_bench or run_storage_bench gave.
std::string bench_table(const nlohmann::json& event);

}  // namespace sluice::bench
