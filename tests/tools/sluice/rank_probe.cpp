// A program for the tests of launchers: a rank that finds the others by its environment, sums over
// them, and prints the sum. Arguments choose how it ends.
//
//     rank_probe [fail RANK STATUS | kill RANK | hang RANK | once FILE]
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/core_shares.hpp"
#include "base/error.hpp"
#include "collectives/control/control_plane.hpp"
#include "collectives/gloo/gloo_communicator.hpp"

namespace sluice::collectives {
namespace {

using Words = std::vector<std::string>;

void end_as_told(const Words& words, int rank) {
  if (words.size() < 2) return;
  if (words[0] == "once") {
    // The first job fails, and the one that follows it does not.
    if (rank != 1 || std::ifstream(words[1]).good()) return;
    std::ofstream(words[1]) << "failed once\n";
    std::_Exit(3);
  }
  if (std::stoi(words[1]) != rank) return;
  if (words[0] == "fail") std::_Exit(std::stoi(words[2]));
  if (words[0] == "kill") ::raise(SIGKILL);
  if (words[0] == "hang") {
    ::signal(SIGTERM, SIG_IGN);
    while (true) ::pause();
  }
}

int run_rank(const Words& words) {
  const RendezvousPlace place = place_from_environment();
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
    std::fprintf(stderr, "processors %s\n", describe_cpus(cpus).c_str());
  }
  ControlOptions control_options;
  control_options.silence_seconds = 2;
  ControlPlane control(place, {}, control_options);
  try {
    GlooOptions options = gloo_options_at(place);
    options.exchange = [&](const std::string& message, Deadline deadline) {
      return control.gather("addresses", message, deadline);
    };
    const std::shared_ptr<Communicator> group = make_gloo_communicator(options);
    control.watch(group);
    std::int32_t sum = 1 << place.rank;
    std::vector<std::int32_t> workspace(64);
    group->all_reduce(&sum, 1, DType::kI32, workspace.data());
    std::printf("rank %d of %d has the sum %d\n", place.rank, place.size, sum);
    std::fflush(stdout);
    end_as_told(words, place.rank);
    group->barrier();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", control.find_cause(error.what()).text.c_str());
    return error.exit_status();
  }
}

}  // namespace
}  // namespace sluice::collectives

int main(int argc, char** argv) {
  try {
    return sluice::collectives::run_rank({argv + 1, argv + argc});
  } catch (const sluice::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_status();
  }
}
