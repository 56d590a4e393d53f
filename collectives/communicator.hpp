// Collectives over a group of ranks, behind one interface: a single rank, threads of one process
// (local/), processes with Gloo (gloo/), or GPUs with NCCL (nccl/).
//
// Every collective is an exchange of parts and, for reductions, a sum of our own (fold.hpp). The
// implementations only move bytes, so the bits of a sum do not depend on them. A reduction adds
// along the tree of law 2, in fp32 for fp32 and shorter floats, and rounds once.
//
// The caller passes all buffers and workspaces (256-byte aligned). Calls are ordered on a stream if
// the implementation has one; otherwise they are complete on return. All ranks of the group make
// the same calls in the same order, one at a time. send, receive and exchange are calls of the
// ranks that they name alone. In host memory one thread may send while another receives. Parts may
// be empty or differ in size: `counts` holds the elements of each rank's part, the same on all
// ranks, and parts lie one after the other in rank order.
//
// A call ends by its deadline. It throws TimeoutError, which names a rank that did not take part,
// CommunicationError if a rank is gone or the group was aborted, or DeviceError if the device
// fails. A failure ends the group: it aborts, so that the other ranks' calls fail too, and every
// later call throws CommunicationError with the first reason.
//
// The byte counters count payload, by definition and not by transport. Each part counts once for
// each other rank that receives it: as sent on the rank that owned it, as received on the other. A
// broadcast of n bytes to N ranks therefore sends (N - 1) n bytes from its root. A part that stays
// on its rank counts nothing, neither do barriers, headers and retransmissions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace sluice::collectives {

// A rank is gone, or the group was aborted.
class CommunicationError : public Error {
 public:
  // failed_rank: the rank at fault, as the group counts, or -1. failed_call: the call that could
  // not finish.
  CommunicationError(int failed_rank, std::string failed_call, const std::string& reason);
  std::string_view code() const noexcept override { return "communication"; }
  // Returns this fault with the name of the operation that made the call.
  CommunicationError in(const std::string& operation) const { return {rank, operation, why}; }

  int rank;
  std::string call;
  std::string why;
};

struct ByteCounts {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ByteCounts operator+(const ByteCounts& more) const {
    return {sent + more.sent, received + more.received};
  }
  ByteCounts operator-(const ByteCounts& less) const {
    return {sent - less.sent, received - less.received};
  }
};

// One transfer of an exchange.
struct Outgoing {
  int peer = 0;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
};
struct Incoming {
  int peer = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

// The element types of a reduction: of the parts, and of the result. They are equal, or one is fp32
// and the other a 16-bit float: such sums may be kept in fp32 and rounded later.
struct ReductionTypes {
  DType part = DType::kF32;
  DType sum = DType::kF32;
};

// The parts of a reduction, [elems] each: this rank's, and in `others` those of all ranks, one
// after the other. The place of `own_rank` in `others` is not read.
struct RankParts {
  const void* own = nullptr;
  const void* others = nullptr;
  int own_rank = 0;
  int ranks = 1;
};

class Communicator {
 public:
  using Counts = std::span<const std::uint64_t>;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // source: this rank's part; destination: all parts. In place if source is this rank's place in
  // destination. `count`: parts of equal size.
  void all_gather(const void* source, void* destination, Counts counts, DType dtype);
  void all_gather(const void* source, void* destination, std::uint64_t count, DType dtype);

  // source: all parts; destination: the sum over ranks of this rank's part. In place if destination
  // is this rank's place in source and the types are equal. workspace: null if its size is 0.
  std::uint64_t reduce_scatter_workspace_bytes(Counts counts, DType part) const;
  void reduce_scatter(const void* source, void* destination, Counts counts, ReductionTypes types,
                      void* workspace);
  std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t count, DType part) const;
  void reduce_scatter(const void* source, void* destination, std::uint64_t count, DType dtype,
                      void* workspace);

  // Sums data [count] over the ranks, in place: a reduce_scatter of even parts, then an all_gather.
  std::uint64_t all_reduce_workspace_bytes(std::uint64_t count, DType dtype) const;
  void all_reduce(void* data, std::uint64_t count, DType dtype, void* workspace);

  // Sends to[r] elements of source to rank r and receives from[r] from it. to[rank()] and
  // from[rank()] are equal. source and destination do not overlap.
  void all_to_all(const void* source, Counts to, void* destination, Counts from, DType dtype);
  void broadcast(void* data, std::uint64_t count, DType dtype, int root);
  // A send may wait for its receive. tag: from 0 to kMostTag.
  void send(const void* data, std::uint64_t bytes, int peer, int tag);
  void receive(void* data, std::uint64_t bytes, int peer, int tag);
  static constexpr int kMostTag = 0xffff;
  // Returns after all ranks have called it. Waits for queued calls.
  virtual void barrier() = 0;

  // The two operations that all of the above are made of, for further algorithms.
  //
  // Makes all transfers at once, at most one to each peer and one from each. `call` names the
  // algorithm in errors.
  void exchange(const char* call, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming);
  // out [elems]: the sum of the parts along the tree. out may be parts.own if the types are equal.
  virtual void fold_parts(const RankParts& parts, ReductionTypes types, void* out,
                          std::uint64_t elems);

  // A group of some of this group's ranks. All ranks call it, each with the members of its own new
  // group: ascending ranks of this group, this rank among them. The lists of two ranks are equal or
  // have no rank in common. Counters start at 0, deadlines are this group's.
  virtual std::unique_ptr<Communicator> split(std::span<const int> members) = 0;

  // Ends the group on this rank with a reason: a call that waits throws CommunicationError, and so
  // do later calls. The only member that other threads may call during a call. The first reason
  // stays. Groups that were split off are aborted by calls of their own.
  virtual void abort(const std::string& why) noexcept = 0;
  // Call while waiting for queued collectives. Throws if the group was aborted, or if a call has
  // failed or has not finished by its deadline; the group then ends, so that no stream hangs on a
  // dead rank.
  void check() { check_usable("check"); }
  // Whether all queued calls have finished. Throws as check() does.
  virtual bool is_idle() {
    check();
    return true;
  }

  // Payload of the finished (with a stream: queued) calls. Any thread may read.
  ByteCounts bytes() const {
    return {sent_bytes_.load(std::memory_order_relaxed),
            received_bytes_.load(std::memory_order_relaxed)};
  }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

  // check() for the start of a call.
  virtual void check_usable(const char* call) = 0;
  // Makes the transfers of a call: all peers are other ranks, all sizes are positive.
  virtual void transfer(const char* call, int tag, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming) = 0;
  // Copies within this rank; the buffers do not overlap.
  virtual void copy(void* to, const void* from, std::uint64_t bytes);
  // Ways of the transport's own for parts of equal size, and for one part from a root. They return
  // false if there is none.
  virtual bool gather_natively(const void* source, void* destination, std::uint64_t part_bytes);
  virtual bool broadcast_natively(void* data, std::uint64_t bytes, int root);

  // A barrier by transfers of a byte in host memory, for implementations without a stream. In step
  // s each rank hears of 2^s more ranks (a dissemination barrier).
  void meet_all();
  void check_members(std::span<const int> members) const;
  std::string describe_place() const;  // "rank 1 of 4"

 private:
  void gather_parts(const char* call, const void* source, void* destination, Counts counts,
                    DType dtype);
  void exchange_and_fold(const char* call, const void* source, void* destination, Counts counts,
                         ReductionTypes types, void* workspace);
  void transfer_counted(const char* call, int tag, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming);
  void check_counts(const char* call, Counts counts) const;
  void check_peer(const char* call, int peer, int tag) const;
  std::vector<std::uint64_t> equal_counts(std::uint64_t count) const;
  // The parts of an all_reduce: as even as possible, the first ones larger.
  std::vector<std::uint64_t> even_counts(std::uint64_t count) const;

  const int rank_, size_;
  std::atomic<std::uint64_t> sent_bytes_{0}, received_bytes_{0};
};

// A group of one rank. send() and receive() throw InternalError: nothing could match them.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace sluice::collectives
