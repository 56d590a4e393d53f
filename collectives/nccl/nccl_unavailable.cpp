// The factory for builds without CUDA or without NCCL's header.
#include "base/error.hpp"
#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/nccl/single_gpu_communicator.hpp"

namespace sluice::collectives {

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  SLUICE_CHECK(options.stream != nullptr && options.device != nullptr);
  if (options.place.size == 1) return make_single_gpu_communicator(*options.stream);
  throw DeviceError(nccl_missing());
}

std::string nccl_missing() {
  return "this build of Sluice has no NCCL; build with SLUICE_CUDA=ON where nccl.h is installed";
}

}  // namespace sluice::collectives
