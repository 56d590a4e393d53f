// `sluice bench step`: the AdamW step of a model with its state on storage. The step's own parts
// and fio are measured in the same rounds.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/bench/offloaded_step.hpp"

namespace sluice::bench {

struct StepBenchOptions {
  std::string directory = ".";  // a directory of its own is made there and removed
  // The least number of parameters; layers of `shape` are added until it is reached.
  std::int64_t elems = std::int64_t{1} << 28;
  OffloadedStepShape shape;
  int threads = 0;                    // of the update; 0: all cores
  int rounds = 7;                     // at least 5
  std::vector<std::string> variants;  // names; empty: all
};

// {"event":"bench","name":"step","figures":{engine, threads, rounds, parameters, variants:{NAME:{
//   a description, read_bytes_per_param, write_bytes_per_param (as the storage engine counted),
//   piece_elems, staging_bytes,
//   step_s                the engine's step: reads, updates, writes
//   io_alone_s            the storage engine alone, duplex, the same bytes, at its own settings
//   fio_s                 the same by fio (fio_memory: "huge pages" or "small pages");
//                         both in requests as large as the step's own (yardstick_block_bytes), as
//                         many at once as its staging holds (yardstick_depth);
//                         or "fio": the reason that it did not run
//   without_update_s      the step's own schedule, its updates left out
//   update_alone_s        the step's own updates on the same memory, its transfers left out
//   ratio_io, ratio_fio, ratio_update   step_s / each
//   cpu_s, update_cpu_s, io_alone_cpu_s, tag_cpu_s   CPU time of the step, of its updates alone, of
//                         its I/O alone, of its tags
//   cpu_beyond_update_s_per_256m        (cpu_s - update_cpu_s) for each 2^28 parameters
//   bound_by              "storage" or "update": the slower of its parts
//   goals: {io, fio, cpu}               whether ratio_io is at most 1.05, ratio_fio 1.10, and
//                                       the CPU time beyond the update 0.3 s
// }}}}
// All figures are medians over the rounds; ratios are medians of the rounds' ratios. The variants
// run one after another, and each fills its own state. Throws Error if the counted bytes are not
// those of the layout, and InputError for bad options or if there is no room.
nlohmann::json run_step_bench(const StepBenchOptions& options);

}  // namespace sluice::bench
