// The rendezvous: ranks of a job exchange messages over TCP before they have a communicator. Each
// rank sends rank 0 a message and receives the messages of all ranks. Rank 0 serves; the others
// retry until they reach it.
//
// Rank 0 drops connections that do not speak the protocol (port scanners, health checks); they
// delay no rank. A rank that connects and dies may connect again. The port is for a trusted
// network: anyone who knows the job's name can join.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"

namespace sluice::collectives {

struct RendezvousPlace {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // host name or address of rank 0
  std::uint16_t port = 0;
  std::string job;  // equal on all ranks; at most 256 bytes
};

// Longest message of a rank.
inline constexpr std::uint32_t kMostRendezvousBytes = 4096;

// Returns every rank's message in rank order, the same on all ranks. A group of one uses no
// network. Throws TimeoutError, which names the missing ranks (on rank 0) or the awaited answer (on
// others). Throws InputError if ranks disagree about size or job, or if two claim the same rank.
// All ranks that had joined throw it, with the same text.
std::vector<std::string> exchange_messages(const RendezvousPlace& place, const std::string& message,
                                           Deadline deadline);

// Reads a rank's place from torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
// TORCHELASTIC_RUN_ID as the job. If TORCHELASTIC_USE_AGENT_STORE is True, torchrun's agent itself
// serves at MASTER_PORT, and the next port is used. SLUICE_MASTER_PORT, if set, is the port.
// Without RANK and WORLD_SIZE it returns a group of one. Throws InputError that names the variable.
RendezvousPlace place_from_environment();
// LOCAL_RANK, the index of this rank's device on its node; 0 if it is not set.
int local_rank_from_environment();

}  // namespace sluice::collectives
