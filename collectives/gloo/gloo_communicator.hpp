// A group of processes that communicate over TCP with Gloo, the library behind torch.distributed's
// CPU backend. Buffers are host memory. Calls are complete on return.
//
// Gloo only moves bytes here; its own sums depend on its algorithms. The ranks find each other
// through an exchange of messages that the caller brings (a rendezvous or the control plane). Each
// communicator has a Gloo context of its own, with a connection to each other rank. Contexts of one
// process share a thread.
//
// A killed peer fails the calls that wait for it within milliseconds. A stopped one shows up at the
// deadline only, so the control plane watches for it and calls abort(). A message matches its
// receive by call, tag and size: ranks whose calls disagree wait for each other until the deadline
// and never read bytes of another call.
//
// Each end of a connection proves to the other that it has a secret of the exchange. Another
// program that connects to a port of Gloo's becomes no rank; the ranks connect anew, a few times.
// Nothing is encrypted, and Gloo parses all bytes that arrive: the network is trusted, as for the
// rendezvous.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "collectives/communicator.hpp"
#include "collectives/rendezvous.hpp"

namespace sluice::collectives {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  // An address of this machine that the other ranks can reach.
  std::string address = "127.0.0.1";
  MessageExchange exchange;
  // Deadline of finding the other ranks and connecting to them, and of each call.
  double start_seconds = 300;
  double call_seconds = kDefaultDeadlineSeconds;
};

// The options of a rank that its launcher has placed. On one node they use the loopback interface,
// else the one that leads to rank 0. The ranks meet at place.port.
GlooOptions gloo_options_at(const RendezvousPlace& place);

// Why Gloo cannot be used here: its module or its libraries are missing. Empty if it can.
std::string gloo_missing();

// Waits for all ranks. A group of one uses neither Gloo nor the network. Throws DeviceError if
// gloo_missing(), CommunicationError if a connection fails, and what `exchange` throws.
std::unique_ptr<Communicator> make_gloo_communicator(const GlooOptions& options);

}  // namespace sluice::collectives
