#include "device/cuda/cuda_search.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "base/error.hpp"
#include "device/cuda/cuda_context.hpp"

namespace sluice::device {
namespace {

int attribute(const CudaDriver& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  driver.check(driver.cuDeviceGetAttribute(&value, which, device), "asking for facts of a GPU");
  return value;
}

// The first line of a sysfs file of the GPU's PCI function; empty if there is none.
std::string read_pci_file(const std::string& bus_id, const char* name) {
  std::string folder = bus_id;
  std::transform(folder.begin(), folder.end(), folder.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file("/sys/bus/pci/devices/" + folder + "/" + name);
  std::string line;
  std::getline(file, line);
  return line;
}

int numa_node_of(const std::string& bus_id) {
  const std::string text = read_pci_file(bus_id, "numa_node");
  const bool number =
      !text.empty() && text.size() < 6 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  return number ? std::stoi(text) : -1;  // sysfs has -1 if the machine has no nodes
}

}  // namespace

int count_cuda_devices(const CudaDriver& driver) {
  int count = 0;
  driver.check(driver.cuDeviceGetCount(&count), "counting GPUs");
  return count;
}

CudaDeviceInfo describe_cuda_device(const CudaDriver& driver, int ordinal) {
  CudaDeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  driver.check(driver.cuDeviceGet(&device, ordinal), "finding a GPU");
  std::array<char, 256> text{};
  driver.check(driver.cuDeviceGetName(text.data(), static_cast<int>(text.size()), device),
               "asking for a GPU's name");
  info.name = text.data();
  driver.check(driver.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device),
               "asking for a GPU's PCI address");
  info.pci_bus_id = text.data();
  std::size_t bytes = 0;
  driver.check(driver.cuDeviceTotalMem(&bytes, device), "asking for a GPU's memory");
  info.memory_bytes = bytes;
  info.compute_major = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  info.compute_minor = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  info.multiprocessors = attribute(driver, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  info.virtual_memory =
      attribute(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0;
  driver.check(driver.cuDriverGetVersion(&info.driver_version), "asking for the driver's version");
  info.numa_node = numa_node_of(info.pci_bus_id);
  info.link_speed = read_pci_file(info.pci_bus_id, "max_link_speed");
  info.link_lanes = read_pci_file(info.pci_bus_id, "max_link_width");
  return info;
}

std::uint64_t free_cuda_bytes(const CudaDriver& driver) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  driver.check(driver.cuMemGetInfo(&free_bytes, &total_bytes), "asking for free device memory");
  return free_bytes;
}

CudaSearch find_cuda_devices() {
  CudaDriverSearch found = find_cuda_driver();
  CudaSearch search;
  search.missing = std::move(found.missing);
  if (found.driver == nullptr) return search;
  try {
    const int count = count_cuda_devices(*found.driver);
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      search.devices.push_back(describe_cuda_device(*found.driver, ordinal));
    }
    if (count == 0) search.missing = "the NVIDIA driver shows no GPU to this process";
  } catch (const DeviceError& error) {
    search.devices.clear();
    search.missing = std::string("the NVIDIA driver does not describe its GPUs: ") + error.what();
  }
  return search;
}

std::uint64_t free_cuda_bytes(int ordinal) {
  const auto context = hold_cuda_context(ordinal);
  const CurrentContext current(*context);
  return free_cuda_bytes(context->driver());
}

std::shared_ptr<const CudaContext> hold_cuda_context(int ordinal) {
  const CudaDriverSearch found = find_cuda_driver();
  if (found.driver == nullptr) throw DeviceError(found.missing);
  CUdevice device = 0;
  found.driver->check(found.driver->cuDeviceGet(&device, ordinal), "finding a GPU");
  return std::make_shared<const CudaContext>(found.driver, device);
}

}  // namespace sluice::device
