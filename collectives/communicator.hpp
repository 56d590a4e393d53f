// Collectives over a group of ranks, behind one interface: a single rank, or GPUs with NCCL.
//
// The caller passes all buffers and workspaces (256-byte aligned); nothing is allocated here. Calls
// are ordered on a stream if the implementation has one; otherwise they are complete on return. A
// reduction adds in rank order, in fp32 for fp32 and shorter floats, and rounds once. All ranks of
// the group make the same calls in the same order. Throws TimeoutError after its deadline, and
// DeviceError if the transport reports a failure.
#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.hpp"

namespace sluice::collectives {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // destination: [size * count]; source: [count]. In place if source == destination + rank * count.
  virtual void all_gather(const void* source, void* destination, std::uint64_t count,
                          DType dtype) = 0;
  // source: [size * count]; destination: [count], the sum over ranks of this rank's part. In place
  // if destination == source + rank * count. workspace: null if its size is 0.
  virtual std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t count, DType dtype) const = 0;
  virtual void reduce_scatter(const void* source, void* destination, std::uint64_t count,
                              DType dtype, void* workspace) = 0;
  // Sums data [count] over the ranks, in place.
  virtual std::uint64_t all_reduce_workspace_bytes(std::uint64_t count, DType dtype) const = 0;
  virtual void all_reduce(void* data, std::uint64_t count, DType dtype, void* workspace) = 0;
  virtual void broadcast(void* data, std::uint64_t count, DType dtype, int root) = 0;
  virtual void send(const void* data, std::uint64_t bytes, int peer, int tag) = 0;
  virtual void receive(void* data, std::uint64_t bytes, int peer, int tag) = 0;
  virtual void barrier() = 0;
  // Call while waiting for queued collectives. Throws if one has failed, or has not finished by its
  // deadline; it is then aborted, so that no stream hangs on a dead rank.
  virtual void check() {}
};

// A group of one rank. send() and receive() throw InternalError: nothing could match them.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace sluice::collectives
