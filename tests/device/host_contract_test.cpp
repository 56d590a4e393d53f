#include "device/host/host_device.hpp"
#include "tests/contract/device_contract.hpp"

namespace sluice::device {
namespace {

struct HostFactory {
  static std::unique_ptr<Device> make(std::uint64_t capacity_bytes) {
    return make_host_device({.capacity_bytes = capacity_bytes});
  }
  static const char* missing() { return "never: every machine has CPU memory"; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DeviceContract, HostFactory);

// The promises with the debug checks on: they change nothing, and none of these programs
// races.
struct CheckedHostFactory : HostFactory {
  static std::unique_ptr<Device> make(std::uint64_t capacity_bytes) {
    return make_host_device({.capacity_bytes = capacity_bytes, .detect_races = true});
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CheckedHost, DeviceContract, CheckedHostFactory);

// The promises with a link that is slow enough to keep copies in flight.
struct LinkedHostFactory : HostFactory {
  static std::unique_ptr<Device> make(std::uint64_t capacity_bytes) {
    return make_host_device({.capacity_bytes = capacity_bytes,
                             .link_bandwidth_bytes_per_s = 2e9,
                             .link_latency_s = 20e-6});
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(LinkedHost, DeviceContract, LinkedHostFactory);

}  // namespace
}  // namespace sluice::device
