// How the ranks of a job find each other before there is a communicator: over TCP, each hands rank
// 0 a message and gets every rank's message back. Rank 0 serves; the others connect, again and
// again until it is there.
//
// Connections that do not speak the protocol (port scanners, health checks) are closed and
// forgotten, and cannot hold anybody up. A rank that connects and dies may connect again. The port
// is for a trusted network: whoever knows the job's name can join it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"

namespace sluice::collectives {

struct RendezvousPlace {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // of rank 0: a name or a number
  std::uint16_t port = 0;
  std::string job;  // equal on all ranks; at most 256 bytes
};

// A rank's message is at most this long.
inline constexpr std::uint32_t kMostRendezvousBytes = 4096;

// Every rank's message, in rank order; all ranks get the same. A group of one touches no network.
// Throws TimeoutError that names who is missing (rank 0) or what was waited for (others), and
// InputError where ranks disagree about size or job, or two say that they are the same rank: on all
// ranks that had joined, in the same words.
std::vector<std::string> exchange_messages(const RendezvousPlace& place, const std::string& message,
                                           Deadline deadline);

// A rank's place as torchrun tells it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and
// TORCHELASTIC_RUN_ID as the job. torchrun's agent itself serves at MASTER_PORT where
// TORCHELASTIC_USE_AGENT_STORE is True: then the port after it is taken. SLUICE_MASTER_PORT, where
// set, is the port. With neither RANK nor WORLD_SIZE: a group of one. Throws InputError that names
// the variable.
RendezvousPlace place_from_environment();
// LOCAL_RANK: which of the node's devices is this rank's; 0 where it is not set.
int local_rank_from_environment();

}  // namespace sluice::collectives
