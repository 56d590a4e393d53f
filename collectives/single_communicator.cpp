// The group of one rank: every reduction is the identity, so only copies remain.
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "collectives/communicator.hpp"

namespace sluice::collectives {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_gather(const void* source, void* destination, std::uint64_t count,
                  DType dtype) override {
    copy(source, destination, count, dtype);
  }
  std::uint64_t reduce_scatter_workspace_bytes(std::uint64_t, DType) const override { return 0; }
  void reduce_scatter(const void* source, void* destination, std::uint64_t count, DType dtype,
                      void* /*workspace*/) override {
    copy(source, destination, count, dtype);
  }
  std::uint64_t all_reduce_workspace_bytes(std::uint64_t, DType) const override { return 0; }
  void all_reduce(void* /*data*/, std::uint64_t /*count*/, DType /*dtype*/,
                  void* /*workspace*/) override {}
  void broadcast(void* /*data*/, std::uint64_t /*count*/, DType /*dtype*/, int root) override {
    SLUICE_CHECK(root == 0);
  }
  void send(const void* /*data*/, std::uint64_t /*bytes*/, int peer, int tag) override {
    refuse("send", peer, tag);
  }
  void receive(void* /*data*/, std::uint64_t /*bytes*/, int peer, int tag) override {
    refuse("receive", peer, tag);
  }
  void barrier() override {}

 private:
  // In place (source == destination) moves nothing. Other overlaps break the contract.
  static void copy(const void* source, void* destination, std::uint64_t count, DType dtype) {
    if (source == destination || count == 0) return;
    std::memcpy(destination, source, count * dtype_bytes(dtype));
  }
  [[noreturn]] static void refuse(const char* call, int peer, int tag) {
    throw InternalError(std::string(call) + " with peer " + std::to_string(peer) + ", tag " +
                        std::to_string(tag) + " in a group of one rank: nothing can match it");
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace sluice::collectives
