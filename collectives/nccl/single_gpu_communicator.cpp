// Copies for a group of one GPU. Reductions are the identity; send() and receive() are errors, as
// in the host's group of one.
#include "collectives/nccl/single_gpu_communicator.hpp"

#include "base/units.hpp"
#include "collectives/nccl/nccl_communicator.hpp"

namespace sluice::collectives {
namespace {

class SingleGpuCommunicator final : public Communicator {
 public:
  explicit SingleGpuCommunicator(device::Stream& stream)
      : stream_(stream), single_(make_single_communicator()) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(const void* source, void* destination, std::uint64_t count,
                  DType dtype) override {
    copy(source, destination, bytes_of(dtype, count));
  }
  std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t, DType) const override { return 0; }
  void reduce_scatter(const void* source, void* destination, std::uint64_t count, DType dtype,
                      void* /*workspace*/) override {
    copy(source, destination, bytes_of(dtype, count));
  }
  std::uint64_t all_reduce_workspace_bytes(std::uint64_t, DType) const override { return 0; }
  void all_reduce(void* /*data*/, std::uint64_t /*count*/, DType /*dtype*/,
                  void* /*workspace*/) override {}
  void broadcast(void* data, std::uint64_t count, DType dtype, int root) override {
    single_->broadcast(data, count, dtype, root);
  }
  void send(const void* data, std::uint64_t bytes, int peer, int tag) override {
    single_->send(data, bytes, peer, tag);
  }
  void receive(void* data, std::uint64_t bytes, int peer, int tag) override {
    single_->receive(data, bytes, peer, tag);
  }
  void barrier() override {}

 private:
  void copy(const void* source, void* destination, std::uint64_t bytes) {
    if (source == destination || bytes == 0) return;
    stream_.copy(destination, source, bytes, device::CopyKind::kDeviceToDevice);
  }

  device::Stream& stream_;
  const std::unique_ptr<Communicator> single_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_gpu_communicator(device::Stream& stream) {
  return std::make_unique<SingleGpuCommunicator>(stream);
}

std::uint64_t nccl_scratch_bytes(int ranks) {
  return round_up(static_cast<std::uint64_t>(ranks), kTensorAlignmentBytes);
}

}  // namespace sluice::collectives
