// The group of GPUs, by NCCL on the comm lane's stream.
//
// NCCL only carries bytes here. Its own sums depend on its algorithm and the number of ranks, so a
// reduction is an exchange of parts into the workspace and a fold in rank order by a kernel of ours
// (kernels/cuda/gradients.hpp); an all_reduce gathers the folded parts.
//
// Calls are made from inside Stream::launch of that stream, as kernels are, and return when NCCL
// has queued them; buffers are device memory. Ranks that one machine's GPU would have to be shared
// by are refused before NCCL is asked. NCCL has no tags: sends and receives between two ranks match
// in their order. One thread at a time.
//
// Nothing blocks for good: where NCCL does not take a call by its deadline, or a queued one has not
// finished by then (seen by the next call, by barrier() and by check()), the communicator is
// aborted, which ends its kernels on the GPU, and TimeoutError names the call. After that every
// call throws DeviceError that says why it was aborted. The destructor aborts what has not
// finished.
#pragma once

#include <cstdint>
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
  // The GPU by a name that is the same for all processes of a machine: "0000:17:00.0".
  std::string gpu;
  device::Device* device = nullptr;  // of whose events the calls are watched
  device::Stream* stream = nullptr;  // the comm lane's
  // Device memory for barriers, nccl_scratch_bytes(place.size).
  void* scratch = nullptr;
  // For the rendezvous and NCCL's own start together, and for each call.
  double start_seconds = 300;
  double call_seconds = kDefaultDeadlineSeconds;
  const NcclFunctions* nccl = nullptr;  // null: libnccl.so.2
};
std::uint64_t nccl_scratch_bytes(int ranks);

// Waits for all ranks. A group of one touches neither NCCL nor the network. Throws InputError where
// ranks disagree or share a GPU, DeviceError without NCCL or where it fails, TimeoutError.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options);

}  // namespace sluice::collectives
