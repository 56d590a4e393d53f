// The ranks of a job as processes of the program, started without a launcher: each with the
// environment that torchrun gives. So a test sees every rank's own output and exit status.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "collectives/socket.hpp"
#include "tests/support/child_process.hpp"

namespace sluice::testing {

class JobProcesses {
 public:
  struct Rank {
    std::vector<std::string> command;
    std::filesystem::path directory;
    int number = 0;                                       // RANK
    std::map<std::string, std::string> environment = {};  // of this rank
  };

  // size: WORLD_SIZE. port: 0 takes one that was free a moment ago.
  explicit JobProcesses(const std::vector<Rank>& ranks, int size,
                        const std::map<std::string, std::string>& environment,
                        std::uint16_t port = 0) {
    if (port == 0) port = collectives::port_of(collectives::listen_at("127.0.0.1", 0));
    for (const Rank& rank : ranks) {
      std::map<std::string, std::string> variables = rank.environment;
      variables.insert(environment.begin(), environment.end());
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank.number);
      variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(size);
      variables["MASTER_ADDR"] = "127.0.0.1";
      variables["MASTER_PORT"] = std::to_string(port);
      variables["TORCHELASTIC_RUN_ID"] = "job" + std::to_string(port);
      children_.push_back(std::make_unique<ChildProcess>(rank.command, rank.directory, variables));
    }
  }

  ChildProcess& rank(std::size_t at) { return *children_[at]; }
  std::size_t size() const { return children_.size(); }
  // The outcomes of all ranks, in order.
  std::vector<ChildOutcome> wait(std::chrono::milliseconds deadline) {
    std::vector<ChildOutcome> outcomes;
    for (const auto& child : children_) outcomes.push_back(child->wait(deadline));
    return outcomes;
  }

 private:
  std::vector<std::unique_ptr<ChildProcess>> children_;
};

}  // namespace sluice::testing
