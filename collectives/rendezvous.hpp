// The rendezvous: ranks of a job exchange messages over TCP before they have a communicator. Each
// rank sends rank 0 a message and receives the messages of all ranks. Rank 0 serves; the others
// retry until they reach it.
//
// Rank 0 drops connections that do not speak the protocol (port scanners, health checks); they
// delay no rank. A rank that connects and dies may connect again. The port is for a trusted
// network: anyone who knows the job's name can join.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "collectives/socket.hpp"

namespace sluice::collectives {

struct RendezvousPlace {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // host name or address of rank 0
  std::uint16_t port = 0;
  std::string job;  // equal on all ranks, a secret token at best; at most 256 bytes
  // On rank 0: a socket that a launcher has opened at the port and keeps open, or -1. It is shared,
  // not owned.
  int listener = -1;
  // A launcher has opened the port, so that connections may wait there until rank 0 starts.
  bool port_is_bound = false;
  // This rank among those of its node.
  int local_rank = 0;
  int local_size = 1;
};

// Longest message of a rank: the addresses of a communicator's connections to 400 ranks.
inline constexpr std::uint32_t kMostRendezvousBytes = 1 << 16;

// A meeting, and the connections that it leaves open: on rank 0 one for each other rank, at its
// index; on the others one to rank 0, at index 0.
struct Meeting {
  std::vector<std::string> messages;  // of all ranks, in rank order
  std::vector<Socket> sockets;
  Socket listener;  // on rank 0: the port, for a Door
};

// Ranks disagree about their number, or two claim the same rank. All ranks that had joined throw
// it, with the same text; the one that found it out tells it.
class RanksDisagree : public InputError {
 public:
  RanksDisagree(const std::string& what, bool is_already_reported)
      : InputError(what), already_reported_(is_already_reported) {}
  bool is_already_reported() const noexcept { return already_reported_; }

 private:
  bool already_reported_;
};

// A rank's process ended before all ranks had met, and its launcher said so. The message names it.
class RankLost : public Error {
 public:
  using Error::Error;
};

// Returns every rank's message in rank order, the same on all ranks. A group of one uses no
// network. Throws TimeoutError, which names the missing ranks (on rank 0) or the awaited answer (on
// others), RanksDisagree, RankLost, and InputError on a rank that has reached another job.
Meeting meet_ranks(const RendezvousPlace& place, const std::string& message, Deadline deadline);

// For a launcher: tells rank 0 that rank `place.rank` has ended. Ranks that have not all met then
// throw RankLost with the sentence `why`; a group that has met notices by itself.
void report_lost_rank(const RendezvousPlace& place, const std::string& why);

// Rank 0's port after the meeting. A thread tells a process that comes too late why it has no
// place: its number is taken, or it counts other ranks, or belongs to another job. meet_ranks()
// throws InputError there.
class Door {
 public:
  // is_open: false from the first fault on, when a rank of the next attempt may be knocking; it is
  // let go without an answer, and tries again. lost: a launcher answers in the place of a rank 0
  // that has ended, and every rank of the job throws RankLost with this text.
  Door(RendezvousPlace place, Socket listener, std::function<bool()> is_open,
       std::string lost = {});

 private:
  void serve(const std::stop_token& stop) noexcept;

  const RendezvousPlace place_;
  const Socket listener_;
  const std::function<bool()> is_open_;
  const std::string lost_;
  std::jthread thread_;
};

// Exchanges the messages and closes the connections.
std::vector<std::string> exchange_messages(const RendezvousPlace& place, const std::string& message,
                                           Deadline deadline);

// A way to exchange messages among the ranks of a group that is about to form: a rendezvous, or the
// control plane. Returns every rank's message in rank order.
using MessageExchange =
    std::function<std::vector<std::string>(const std::string& message, Deadline deadline)>;

// Reads a rank's place from the variables of its launcher: those of torchrun and `sluice launch`
// (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and as the job
// TORCHELASTIC_RUN_ID or SLUICE_JOB), else Open MPI's (OMPI_COMM_WORLD_RANK, ...), else those of a
// step of Slurm's srun (SLURM_PROCID, ...). Without any it returns a group of one.
//
// If TORCHELASTIC_USE_AGENT_STORE is True, torchrun's agent itself serves at MASTER_PORT, and the
// next port is used. mpirun and srun name no port: it is derived from the job's number. MASTER_ADDR
// and SLUICE_MASTER_PORT, if set, go before all. Throws InputError that names the variable.
RendezvousPlace place_from_environment();

}  // namespace sluice::collectives
