// The factory for builds without Gloo.
#include "base/error.hpp"
#include "collectives/gloo/gloo_communicator.hpp"

namespace sluice::collectives {

std::unique_ptr<Communicator> make_gloo_communicator(const GlooOptions& options) {
  SLUICE_CHECK(options.rank >= 0 && options.rank < options.size);
  if (options.size == 1) return make_single_communicator();
  throw DeviceError(
      "this build of Sluice has no Gloo, which several ranks need; install libgloo-dev and build "
      "again, or train on one rank");
}

}  // namespace sluice::collectives
