// `sluice bench plan --worlds`: plans of thousands of ranks on paper, their time and memory, and
// the published throughputs of Megatron-LM compared with simulated ones.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::bench {

// Called for each plan before it is made, and with its figures after it, since all of them take
// minutes.
struct WorldNotes {
  using Note = std::function<void(const std::string&)>;
  Note begin = [](const std::string&) {};
  Note done = [](const std::string&) {};
};

// {"profile": {products_of_peak, memory_bytes_per_s, node_bytes_per_s, network_bytes_per_s
//    (of a rank)},
//  "large": one plan of 10,000 ranks and 1 T parameters,
//  "meshes": the best of all meshes of 512 ranks,
//  "published": a row for each model of Table 1 of Narayanan et al., "Efficient large-scale
//    language model training on GPU clusters using Megatron-LM", SC 2021 (arXiv 2104.04473): its
//    TFLOP/s a GPU, the simulated ones, and the error}.
// Times are of the wall clock and of the process; peak_bytes is the process's so far.
nlohmann::json measure_world_plans(const WorldNotes& notes);

}  // namespace sluice::bench
