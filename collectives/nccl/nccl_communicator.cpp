// Collectives from byte transfers. A reduce_scatter sends every rank its part and adds the received
// parts with a kernel, in rank order. An all_reduce divides the array into one part per rank, does
// the same, and gathers the sums. Each call is one NCCL group, watched by NcclSession.
#include "collectives/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "collectives/nccl/nccl_session.hpp"
#include "collectives/nccl/single_gpu_communicator.hpp"
#include "kernels/cuda/gradients.hpp"

namespace sluice::collectives {
namespace {

// Several ranks. All data goes through NCCL as bytes.
class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(const NcclOptions& options)
      : rank_(options.place.rank),
        size_(options.place.size),
        scratch_(options.scratch),
        session_(options) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const void* source, void* destination, std::uint64_t count,
                  DType dtype) override {
    gather("all_gather", source, destination, bytes_of(dtype, count));
  }

  std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t count, DType dtype) const override {
    return static_cast<std::uint64_t>(size_) * bytes_of(dtype, count);
  }
  void reduce_scatter(const void* source, void* destination, std::uint64_t count, DType dtype,
                      void* workspace) override {
    const Parts parts{count, count * static_cast<std::uint64_t>(size_)};
    exchange("reduce_scatter", source, parts, dtype, workspace);
    fold(source, destination, parts, dtype, workspace);
  }

  std::uint64_t all_reduce_workspace_bytes(std::uint64_t count, DType dtype) const override {
    return reduce_scatter_workspace_bytes(part_of(count), dtype);
  }
  void all_reduce(void* data, std::uint64_t count, DType dtype, void* workspace) override {
    const Parts parts{part_of(count), count};
    exchange("all_reduce", data, parts, dtype, workspace);
    fold(data, at(data, parts.begin(rank_), dtype), parts, dtype, workspace);
    gather_parts(data, parts, dtype);
  }

  void broadcast(void* data, std::uint64_t count, DType dtype, int root) override {
    SLUICE_CHECK(root >= 0 && root < size_);
    session_.group("broadcast", [&] { broadcast_part(data, bytes_of(dtype, count), root); });
  }
  void send(const void* data, std::uint64_t bytes, int peer, int tag) override {
    check_peer("send", peer, tag);
    session_.group("send", [&] { send_to(peer, data, bytes); });
  }
  void receive(void* data, std::uint64_t bytes, int peer, int tag) override {
    check_peer("receive", peer, tag);
    session_.group("receive", [&] { receive_from(peer, data, bytes); });
  }
  void barrier() override {
    auto* const own = static_cast<std::byte*>(scratch_) + rank_;
    gather("barrier", own, scratch_, 1);
    session_.wait();
  }
  void check() override { session_.check(); }

 private:
  // The division of `count` elements among ranks: `length` to each, as long as there are any.
  struct Parts {
    std::uint64_t length, count;
    std::uint64_t begin(int rank) const {
      return std::min(count, length * static_cast<std::uint64_t>(rank));
    }
    std::uint64_t elems(int rank) const { return begin(rank + 1) - begin(rank); }
  };
  std::uint64_t part_of(std::uint64_t count) const {
    const auto size = static_cast<std::uint64_t>(size_);
    return (count + size - 1) / size;
  }

  static std::byte* at(void* data, std::uint64_t elems, DType dtype) {
    return static_cast<std::byte*>(data) + bytes_of(dtype, elems);
  }
  static const std::byte* at(const void* data, std::uint64_t elems, DType dtype) {
    return static_cast<const std::byte*>(data) + bytes_of(dtype, elems);
  }

  void check_peer(const char* call, int peer, int tag) const {
    SLUICE_CHECK_MSG(peer >= 0 && peer < size_ && peer != rank_,
                     std::string(call) + " with peer " + std::to_string(peer) + ", tag " +
                         std::to_string(tag) + " on rank " + std::to_string(rank_));
  }

  void send_to(int peer, const void* data, std::uint64_t bytes) {
    if (bytes == 0) return;
    session_.require(
        session_.nccl().send(data, bytes, ncclUint8, peer, session_.handle(), session_.stream()),
        "ncclSend");
  }
  void receive_from(int peer, void* data, std::uint64_t bytes) {
    if (bytes == 0) return;
    session_.require(
        session_.nccl().receive(data, bytes, ncclUint8, peer, session_.handle(), session_.stream()),
        "ncclRecv");
  }
  void broadcast_part(void* data, std::uint64_t bytes, int root) {
    if (bytes == 0) return;
    session_.require(session_.nccl().broadcast(data, data, bytes, ncclUint8, root,
                                               session_.handle(), session_.stream()),
                     "ncclBroadcast");
  }

  void gather(const char* call, const void* source, void* destination, std::uint64_t bytes) {
    if (bytes == 0) return;
    session_.group(call, [&] {
      session_.require(session_.nccl().all_gather(source, destination, bytes, ncclUint8,
                                                  session_.handle(), session_.stream()),
                       "ncclAllGather");
    });
  }

  // Sends every rank its share of `source`. The other ranks' values of this rank's share arrive in
  // the workspace, one after the other in rank order.
  void exchange(const char* call, const void* source, const Parts& parts, DType dtype,
                void* workspace) {
    if (parts.count == 0) return;
    const std::uint64_t own = parts.elems(rank_);
    session_.group(call, [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        send_to(peer, at(source, parts.begin(peer), dtype), bytes_of(dtype, parts.elems(peer)));
        receive_from(peer, at(workspace, own * static_cast<std::uint64_t>(peer), dtype),
                     bytes_of(dtype, own));
      }
    });
  }
  void fold(const void* source, void* destination, const Parts& parts, DType dtype,
            void* workspace) {
    const kernels::cuda::RankParts ranks{at(source, parts.begin(rank_), dtype), workspace, rank_,
                                         size_};
    kernels::cuda::fold_ranks(session_.stream(), ranks, destination, dtype,
                              static_cast<std::int64_t>(parts.elems(rank_)));
  }
  void gather_parts(void* data, const Parts& parts, DType dtype) {
    if (parts.count == parts.length * static_cast<std::uint64_t>(size_)) {
      return gather("all_reduce", at(data, parts.begin(rank_), dtype), data,
                    bytes_of(dtype, parts.length));
    }
    session_.group("all_reduce", [&] {
      for (int root = 0; root < size_; ++root) {
        broadcast_part(at(data, parts.begin(root), dtype), bytes_of(dtype, parts.elems(root)),
                       root);
      }
    });
  }

  const int rank_, size_;
  void* const scratch_;
  NcclSession session_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  SLUICE_CHECK(options.stream != nullptr && options.device != nullptr);
  if (options.place.size == 1) return make_single_gpu_communicator(*options.stream);
  SLUICE_CHECK(options.scratch != nullptr);
  return std::make_unique<NcclCommunicator>(options);
}

}  // namespace sluice::collectives
