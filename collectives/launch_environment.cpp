// A rank's place from its launcher's variables. Each launcher has names of its own for the same
// five facts; a table row holds them.
//
// Sources: torch/distributed/elastic, "Environment Variables"; Open MPI 4.1, mpirun(1),
// "Environment Variables"; Slurm, srun(1), "OUTPUT ENVIRONMENT VARIABLES". Open MPI and Slurm give
// every process of a job the same job number, but no port.
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/error.hpp"
#include "collectives/rendezvous.hpp"

namespace sluice::collectives {
namespace {

constexpr int kMostPort = std::numeric_limits<std::uint16_t>::max();
constexpr int kMostRanks = 1 << 16;

// Below the range from which Linux takes ports for outgoing connections (32768 to 60999).
constexpr std::uint32_t kFirstDerivedPort = 20000, kDerivedPorts = 12000;

struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;
  const char* advice;
};
constexpr Launcher kTorchrun{"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID",
                             "start with sluice launch or torchrun, or set RANK, WORLD_SIZE, "
                             "MASTER_ADDR and MASTER_PORT"};
constexpr Launcher kOpenMpi{"OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "OMPI_MCA_ess_base_jobid",    "start with mpirun"};
// The step's size: a batch script has the job's (SLURM_NTASKS), but is one process.
constexpr Launcher kSlurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                          nullptr,        "SLURM_JOB_ID",         "start with srun"};

const char* variable(const char* name) {
  const char* const value = name != nullptr ? std::getenv(name) : nullptr;
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int number_of(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw InputError(std::string(name) + "='" + shown(text) + "': must be a number from " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}
int number_or(const char* name, int least, int most, int otherwise) {
  return variable(name) != nullptr ? number_of(name, least, most) : otherwise;
}

void require(const char* name, const char* because, const char* advice) {
  if (variable(name) != nullptr) return;
  throw InputError(std::string(name) + " is not set, but " + because + " is; " + advice);
}

const Launcher* find_launcher() {
  // torchrun's names first: people set them by hand, also beneath the other launchers.
  if (variable(kTorchrun.rank) != nullptr || variable(kTorchrun.size) != nullptr) return &kTorchrun;
  if (variable(kOpenMpi.rank) != nullptr) return &kOpenMpi;
  if (variable(kSlurm.size) != nullptr) return &kSlurm;
  return nullptr;
}

// "2(x3),1": two tasks on each of three nodes, one on the last. The first node's.
int tasks_of_first_node(const char* name, int otherwise) {
  const char* const value = variable(name);
  if (value == nullptr) return otherwise;
  const std::string_view text(value);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  static_cast<void>(end);
  return error == std::errc() && number >= 1 ? number : otherwise;
}

// "gpu[03-07,09],login": the first host, "gpu03".
std::string first_host(std::string_view list) {
  const std::size_t end = list.find_first_of(",[");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] == ',') return host;
  const std::string_view numbers = list.substr(end + 1);
  host += numbers.substr(0, numbers.find_first_of(",-]"));
  // A suffix after the brackets belongs to each name.
  const std::size_t close = list.find(']');
  if (close != std::string_view::npos) {
    const std::string_view suffix = list.substr(close + 1);
    host += suffix.substr(0, suffix.find_first_of(",["));
  }
  return host;
}

// FNV-1a: the same port on all ranks of a job, and most likely another for the job next to it.
std::uint16_t derive_port(std::string_view job) {
  std::uint32_t hash = 2166136261u;
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return static_cast<std::uint16_t>(kFirstDerivedPort + hash % kDerivedPorts);
}

void place_locally(RendezvousPlace& place, const Launcher& launcher) {
  place.local_rank = number_or(launcher.local_rank, 0, kMostRanks, 0);
  if (&launcher == &kSlurm) {
    const int nodes = number_or("SLURM_STEP_NUM_NODES", 1, kMostRanks, 1);
    place.local_size = nodes == 1
                           ? place.size
                           : tasks_of_first_node("SLURM_STEP_TASKS_PER_NODE", place.local_rank + 1);
  } else {
    // Unknown: as if all ranks were on one node only where rank 0's address says so.
    const bool is_loopback = variable("MASTER_ADDR") == nullptr ||
                             std::string_view(variable("MASTER_ADDR")) == "127.0.0.1" ||
                             std::string_view(variable("MASTER_ADDR")) == "localhost";
    place.local_size = number_or(launcher.local_size, 1, kMostRanks, is_loopback ? place.size : 1);
  }
}

void find_address(RendezvousPlace& place, const Launcher& launcher) {
  if (variable("MASTER_ADDR") != nullptr) {
    place.address = variable("MASTER_ADDR");
  } else if (&launcher == &kTorchrun) {
    require("MASTER_ADDR", launcher.size, launcher.advice);
  } else if (place.local_size < place.size && &launcher == &kSlurm) {
    require("SLURM_STEP_NODELIST", launcher.size, "set MASTER_ADDR to the machine of rank 0");
    place.address = first_host(variable("SLURM_STEP_NODELIST"));
  } else if (place.local_size < place.size) {
    throw InputError(
        "MASTER_ADDR is not set, but mpirun started ranks on several machines; set it to the "
        "machine of rank 0 (mpirun -x MASTER_ADDR=...)");
  }
}

void find_port(RendezvousPlace& place, const Launcher& launcher) {
  if (variable("SLUICE_MASTER_PORT") != nullptr) {
    place.port = static_cast<std::uint16_t>(number_of("SLUICE_MASTER_PORT", 1, kMostPort));
    return;
  }
  if (&launcher == &kTorchrun) {
    require("MASTER_PORT", launcher.size, launcher.advice);
    const char* const agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    const bool taken = agent != nullptr && std::string_view(agent) == "True";
    place.port = static_cast<std::uint16_t>(
        number_of("MASTER_PORT", 1, taken ? kMostPort - 1 : kMostPort) + (taken ? 1 : 0));
    return;
  }
  if (place.job.empty()) {
    throw InputError(std::string(launcher.job) +
                     " is not set, so the ranks know no common port; set SLUICE_MASTER_PORT");
  }
  place.port = derive_port(place.job);
}

}  // namespace

RendezvousPlace place_from_environment() {
  RendezvousPlace place;
  const Launcher* const launcher = find_launcher();
  if (launcher == nullptr) return place;
  require(launcher->rank, launcher->size, launcher->advice);
  require(launcher->size, launcher->rank, launcher->advice);
  place.size = number_of(launcher->size, 1, kMostRanks);
  place.rank = number_of(launcher->rank, 0, place.size - 1);
  place_locally(place, *launcher);
  if (place.size == 1) return place;
  if (const char* const job = variable(launcher->job)) place.job = job;
  if (launcher == &kSlurm) {
    if (const char* const step = variable("SLURM_STEP_ID")) place.job += std::string(".") + step;
  }
  if (const char* const job = variable("SLUICE_JOB")) place.job = job;
  // `sluice launch` has bound the port already.
  place.port_is_bound = variable("SLUICE_JOB") != nullptr;
  if (place.job.size() > 256) place.job.resize(256);
  find_address(place, *launcher);
  find_port(place, *launcher);
  if (place.rank == 0) {
    place.listener = number_or("SLUICE_LISTENER", 0, std::numeric_limits<int>::max(), -1);
  }
  return place;
}

}  // namespace sluice::collectives
