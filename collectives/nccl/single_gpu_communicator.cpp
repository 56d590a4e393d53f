// Copies for a group of one GPU. Reductions are the identity; send() and receive() are errors, as
// in the host's group of one.
#include "collectives/nccl/single_gpu_communicator.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "collectives/abort_reason.hpp"
#include "collectives/nccl/nccl_communicator.hpp"

namespace sluice::collectives {
namespace {

class SingleGpuCommunicator final : public Communicator {
 public:
  explicit SingleGpuCommunicator(device::Stream& stream) : Communicator(0, 1), stream_(stream) {}

  void barrier() override { check_usable("barrier"); }
  std::unique_ptr<Communicator> split(std::span<const int> members) override {
    check_usable("split");
    check_members(members);
    return make_single_gpu_communicator(stream_);
  }
  void abort(const std::string& why) noexcept override { reason_.set(why); }
  // Such a reduction would change the type of its values, for which there is no kernel here.
  void fold_parts(const RankParts& /*parts*/, ReductionTypes /*types*/, void* /*out*/,
                  std::uint64_t /*elems*/) override {
    throw InternalError("a group of one GPU does not convert values");
  }

 protected:
  void check_usable(const char* call) override { reason_.check(call); }
  void transfer(const char* call, int /*tag*/, std::span<const Outgoing> /*outgoing*/,
                std::span<const Incoming> /*incoming*/) override {
    throw InternalError(std::string(call) + " in a group of one rank: nothing can match it");
  }
  void copy(void* to, const void* from, std::uint64_t bytes) override {
    stream_.copy(to, from, bytes, device::CopyKind::kDeviceToDevice);
  }

 private:
  device::Stream& stream_;
  AbortReason reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_gpu_communicator(device::Stream& stream) {
  return std::make_unique<SingleGpuCommunicator>(stream);
}

std::uint64_t nccl_scratch_bytes(int ranks) {
  return round_up(static_cast<std::uint64_t>(ranks), kTensorAlignmentBytes);
}

}  // namespace sluice::collectives
