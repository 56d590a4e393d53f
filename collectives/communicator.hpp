// Collectives over a group of ranks, behind one interface: single (this file's factory), MPI, NCCL.
//
// Buffers are handed in, workspaces (256-byte aligned) too; nothing is allocated here. Every call
// is stream-ordered where the implementation has a stream, else complete on return. A reduction
// folds in rank order, in fp32 where elements are fp32 or shorter floats, and rounds once. Every
// rank of the group makes the same calls in the same order. Throws TimeoutError past its deadline,
// DeviceError where the transport reports a failure.
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

  // destination: [size * count]; source: [count]. In place where source == destination +
  // rank*count.
  virtual void all_gather(const void* source, void* destination, std::uint64_t count,
                          DType dtype) = 0;
  // source: [size * count]; destination: [count], the sum over ranks of this rank's part. In place
  // where destination == source + rank*count. workspace: null where its bytes are 0.
  virtual std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t count, DType dtype) const = 0;
  virtual void reduce_scatter(const void* source, void* destination, std::uint64_t count,
                              DType dtype, void* workspace) = 0;
  // In place sum, [count].
  virtual std::uint64_t all_reduce_workspace_bytes(std::uint64_t count, DType dtype) const = 0;
  virtual void all_reduce(void* data, std::uint64_t count, DType dtype, void* workspace) = 0;
  virtual void broadcast(void* data, std::uint64_t count, DType dtype, int root) = 0;
  virtual void send(const void* data, std::uint64_t bytes, int peer, int tag) = 0;
  virtual void receive(void* data, std::uint64_t bytes, int peer, int tag) = 0;
  virtual void barrier() = 0;
  // For who waits for calls that are still queued: throws where one has failed, or has not finished
  // by its deadline (and then ends it, so that no stream hangs on a rank that is gone).
  virtual void check() {}
};

// A group of one rank. Sends and receives to itself are InternalError: nothing could match them.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace sluice::collectives
