// The device contract on the GPU that the driver shows: a simulated one in test_device_cuda, the
// machine's own in test_device_gpu.
#include "device/cuda/cuda_device.hpp"
#include "tests/contract/device_contract.hpp"

namespace sluice::device {
namespace {

struct CudaFactory {
  static std::unique_ptr<Device> make(std::uint64_t capacity_bytes) {
    if (find_cuda_devices().devices.empty()) return nullptr;
    return make_cuda_device({.capacity_bytes = capacity_bytes});
  }
  static const char* missing() {
    static const std::string reason = find_cuda_devices().missing;
    return reason.c_str();
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, DeviceContract, CudaFactory);

}  // namespace
}  // namespace sluice::device
