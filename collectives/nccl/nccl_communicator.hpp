// A group of GPUs that communicate with NCCL, on the comm lane's stream.
//
// NCCL only moves bytes here. Its own sums depend on its algorithm and on the number of ranks. A
// reduction therefore exchanges parts into the workspace and adds them along the tree with our own
// kernel (kernels/cuda/gradients.hpp). An all_reduce then gathers the sums.
//
// Calls are made inside Stream::launch of that stream, like kernels, and return once NCCL has
// queued them. Buffers are device memory. Ranks that would share one GPU are refused before NCCL
// starts. NCCL has no tags: sends and receives between two ranks match in order. Not thread-safe.
//
// No call blocks forever. If NCCL does not accept a call by its deadline, or a queued call has not
// finished by then, the communicator is aborted, which ends its kernels on the GPU, and
// TimeoutError names the call. The next call, barrier() and check() notice overdue calls, and carry
// out an abort() of another thread. After an abort every call throws CommunicationError with the
// reason. The destructor aborts calls that have not finished. A group that was split off shares the
// stream and the scratch memory, and must not outlive its parent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "collectives/communicator.hpp"
#include "collectives/rendezvous.hpp"
#include "device/device.hpp"

namespace sluice::collectives {

struct NcclFunctions;

struct NcclOptions {
  RendezvousPlace place;
  // How the ranks meet; empty: at a rendezvous of their own at `place`.
  MessageExchange exchange;
  // A name of the GPU that all processes of the machine share, such as "0000:17:00.0".
  std::string gpu;
  device::Device* device = nullptr;  // creates the events that watch calls
  device::Stream* stream = nullptr;  // the comm lane's stream
  // Device memory for barriers, nccl_scratch_bytes(place.size). Null: barrier() is not called.
  void* scratch = nullptr;
  // Deadline of rendezvous and NCCL start together, and of each call.
  double start_seconds = 300;
  double call_seconds = kDefaultDeadlineSeconds;
  // Called while a call waits. A CommunicationError ends the group with its reason, as abort()
  // does. May be empty.
  std::function<void()> poll;
  const NcclFunctions* nccl = nullptr;  // null: libnccl.so.2
};
// Why there can be no group of several ranks in this process; empty: there can.
std::string nccl_missing();
std::uint64_t nccl_scratch_bytes(int ranks);

// Waits for all ranks. A group of one uses neither NCCL nor the network. Throws InputError if ranks
// disagree or share a GPU, DeviceError if NCCL is missing or fails, TimeoutError.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options);

}  // namespace sluice::collectives
