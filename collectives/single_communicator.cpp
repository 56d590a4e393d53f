// The group of one rank: every reduction is the identity, so only copies remain.
#include "base/error.hpp"
#include "collectives/abort_reason.hpp"
#include "collectives/communicator.hpp"

namespace sluice::collectives {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, 1) {}
  void barrier() override { check_usable("barrier"); }
  std::unique_ptr<Communicator> split(std::span<const int> members) override {
    check_usable("split");
    check_members(members);
    return make_single_communicator();
  }
  void abort(const std::string& why) noexcept override { reason_.set(why); }

 protected:
  void check_usable(const char* call) override { reason_.check(call); }
  void transfer(const char* call, int /*tag*/, std::span<const Outgoing> /*outgoing*/,
                std::span<const Incoming> /*incoming*/) override {
    throw InternalError(std::string(call) + " in a group of one rank: nothing can match it");
  }

 private:
  AbortReason reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace sluice::collectives
