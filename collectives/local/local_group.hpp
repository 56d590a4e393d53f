// A group of ranks that are threads of one process: for tests, and for host programs that embed
// Sluice. Data pass by a copy from the sender's buffer to the receiver's, on the receiver's thread.
//
// A send waits for its receive, as a transport without buffers would. A communicator that is
// destroyed leaves the group: a call that waits for its rank throws CommunicationError at once, as
// if a process had died. Each communicator belongs to one thread; abort() is for all.
#pragma once

#include <memory>
#include <vector>

#include "base/deadline.hpp"
#include "collectives/communicator.hpp"

namespace sluice::collectives {

// One communicator for each rank, in rank order. call_seconds: the deadline of each call.
std::vector<std::unique_ptr<Communicator>> make_local_group(
    int ranks, double call_seconds = kDefaultDeadlineSeconds);

}  // namespace sluice::collectives
