// Training on several ranks, from outside.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/job_processes.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {

class RankTest : public CliTest {
 protected:
  // Keys of a job: `ranks` data-parallel ranks of a step with four micro-batches. One has no stage.
  static Words rank_settings(int ranks, int zero, const Words& settings = {}) {
    return Words{"train.accumulate=4", "parallel.data=" + std::to_string(ranks),
                 "parallel.zero=" + std::to_string(ranks > 1 ? zero : 0)} +
           settings;
  }
  ChildOutcome run_launched(int ranks, const Words& command, const Words& options = {}) const {
    return run(launch_words(ranks, command, options));
  }
  static Words launch_words(int ranks, const Words& command, const Words& options = {}) {
    return Words{"launch", "-n", std::to_string(ranks)} + options + Words{"--"} + command;
  }

  // Starts all ranks with these words.
  std::unique_ptr<JobProcesses> start_ranks(int ranks, const Words& arguments) const {
    return start_each(std::vector<Words>(static_cast<std::size_t>(ranks), arguments));
  }
  std::unique_ptr<JobProcesses> start_each(const std::vector<Words>& arguments) const {
    std::vector<JobProcesses::Rank> ranks;
    for (const Words& words : arguments) {
      ranks.push_back(
          {Words{environment().at("SLUICE")} + words, path(), static_cast<int>(ranks.size())});
    }
    return std::make_unique<JobProcesses>(ranks, static_cast<int>(ranks.size()), environment());
  }
};

// The figures of a run that are to be equal on any number of ranks: every step's loss and norm,
// every evaluation, and the weights.
inline std::vector<std::string> result_of(const ChildOutcome& outcome) {
  std::vector<std::string> result;
  for (const Json& event : events_of(outcome)) {
    for (const char* const figure : {"loss", "grad_norm", "weights_hash"}) {
      if (event.contains(figure)) {
        result.push_back(event.at("event").get<std::string>() + " " + figure + " " +
                         event.at(figure).dump());
      }
    }
  }
  return result;
}

}  // namespace sluice::testing
