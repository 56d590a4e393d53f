// Transfers as groups of NCCL's sends and receives, watched by NcclSession. Parts of equal size and
// broadcasts use NCCL's own collectives, which know the links between the GPUs. Parts are added
// with a kernel.
#include "collectives/nccl/nccl_communicator.hpp"

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
  NcclCommunicator(std::unique_ptr<NcclSession> session, device::Stream& stream, void* scratch)
      : Communicator(session->rank(), session->size()),
        stream_(stream),
        scratch_(scratch),
        session_(std::move(session)) {}

  void barrier() override {
    SLUICE_CHECK(scratch_ != nullptr);
    auto* const own = static_cast<std::byte*>(scratch_) + rank();
    gather("barrier", own, scratch_, 1);
    session_->wait();
  }

  std::unique_ptr<Communicator> split(std::span<const int> members) override {
    check_members(members);
    std::unique_ptr<NcclSession> session = session_->split(members);
    if (members.size() == 1) return make_single_gpu_communicator(stream_);
    return std::make_unique<NcclCommunicator>(std::move(session), stream_, scratch_);
  }

  bool is_idle() override { return session_->is_idle("check"); }
  void abort(const std::string& why) noexcept override { session_->request_abort(why); }

  void fold_parts(const RankParts& parts, ReductionTypes types, void* out,
                  std::uint64_t elems) override {
    kernels::cuda::fold_ranks(session_->stream(),
                              {parts.own, parts.others, parts.own_rank, parts.ranks}, types.part,
                              out, types.sum, static_cast<std::int64_t>(elems));
  }

 protected:
  void check_usable(const char* call) override { session_->check(call); }

  void transfer(const char* call, int /*tag*/, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming) override {
    session_->group(call, [&] {
      for (const Outgoing& sent : outgoing) {
        session_->require(nccl().send(sent.data, sent.bytes, ncclUint8, sent.peer,
                                      session_->handle(), session_->stream()),
                          "ncclSend");
      }
      for (const Incoming& received : incoming) {
        session_->require(nccl().receive(received.data, received.bytes, ncclUint8, received.peer,
                                         session_->handle(), session_->stream()),
                          "ncclRecv");
      }
    });
  }

  void copy(void* to, const void* from, std::uint64_t bytes) override {
    stream_.copy(to, from, bytes, device::CopyKind::kDeviceToDevice);
  }

  bool gather_natively(const void* source, void* destination, std::uint64_t part_bytes) override {
    gather("all_gather", source, destination, part_bytes);
    return true;
  }

  bool broadcast_natively(void* data, std::uint64_t bytes, int root) override {
    session_->group("broadcast", [&] {
      session_->require(nccl().broadcast(data, data, bytes, ncclUint8, root, session_->handle(),
                                         session_->stream()),
                        "ncclBroadcast");
    });
    return true;
  }

 private:
  const NcclFunctions& nccl() const { return session_->nccl(); }

  void gather(const char* call, const void* source, void* destination, std::uint64_t bytes) {
    session_->group(call, [&] {
      session_->require(nccl().all_gather(source, destination, bytes, ncclUint8, session_->handle(),
                                          session_->stream()),
                        "ncclAllGather");
    });
  }

  device::Stream& stream_;
  void* const scratch_;
  const std::unique_ptr<NcclSession> session_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  SLUICE_CHECK(options.stream != nullptr && options.device != nullptr);
  if (options.place.size == 1) return make_single_gpu_communicator(*options.stream);
  return std::make_unique<NcclCommunicator>(std::make_unique<NcclSession>(options), *options.stream,
                                            options.scratch);
}

}  // namespace sluice::collectives
