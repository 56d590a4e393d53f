// Devices, contexts, and the bookkeeping of the simulated driver.
#include "tests/support/cuda_driver/simulated_driver.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace sluice::simulated {
namespace {

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Contexts made current on this thread, the innermost last.
thread_local std::vector<Gpu*> current;

}  // namespace

Driver::Driver() {
  constexpr std::uint64_t kBytes = 2ULL << 30;
  const bool guarded = environment("SLUICE_SIMULATED_GPU_GUARD", 0) != 0;
  const std::uint64_t count = environment("SLUICE_SIMULATED_GPUS", 1);
  for (std::uint64_t i = 0; i < count; ++i) {
    gpus.push_back(
        std::make_unique<Gpu>(environment("SLUICE_SIMULATED_GPU_BYTES", kBytes), guarded));
  }
}

// Never destroyed: streams may be at work while the process ends.
Driver& Driver::instance() {
  static Driver* const driver = new Driver;
  return *driver;
}

CUresult Driver::enter(const char* function) {
  if (on_worker_thread()) return CUDA_ERROR_NOT_PERMITTED;  // as from a host function
  const std::lock_guard lock(mutex);
  if (!initialized && std::strcmp(function, "cuInit") != 0 &&
      std::strcmp(function, "cuDriverGetVersion") != 0) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (failing.empty() || failing == function) {
    ++calls;
    const bool fails = remaining == 0;
    if (remaining >= 0 && (!fails || !forever)) --remaining;
    if (fails) return failure;
  }
  return fault();
}

CUresult Driver::enter_context(const char* function, Gpu*& gpu) {
  gpu = current_gpu();
  const CUresult status = enter(function);
  if (status != CUDA_SUCCESS) return status;
  return gpu != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

Stream* Driver::find(CUstream stream) {
  if (stream == nullptr && !streams.contains(nullptr)) {
    Gpu* const gpu = current_gpu();
    if (gpu == nullptr) return nullptr;
    streams.emplace(nullptr, Stream{gpu, std::make_unique<Queue>(gpu->memory)});
  }
  const auto entry = streams.find(stream);
  return entry == streams.end() ? nullptr : &entry->second;
}

Event* Driver::find(CUevent event) {
  const auto entry = events.find(event);
  return entry == events.end() ? nullptr : &entry->second;
}

void Driver::close_default_stream() {
  const auto found = streams.find(nullptr);
  if (found == streams.end()) return;
  found->second.queue->close();
  closing.push_back(std::move(found->second.queue));
  streams.erase(found);
}

void Driver::reap() {
  std::erase_if(closing, [](const std::unique_ptr<Queue>& queue) { return queue->ended(); });
}

void Driver::reap_all(std::unique_lock<std::mutex>& lock) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  reap();
  while (!closing.empty() && std::chrono::steady_clock::now() < deadline) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
    reap();
  }
}

Gpu* current_gpu() {
  return current.empty() ? nullptr : current.back();
}

}  // namespace sluice::simulated

using sluice::simulated::current;
using sluice::simulated::current_gpu;
using sluice::simulated::Driver;
using sluice::simulated::Gpu;

extern "C" {

CUresult cuInit(unsigned int flags) {
  Driver& driver = Driver::instance();
  if (const CUresult status = driver.enter("cuInit"); status != CUDA_SUCCESS) return status;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver.mutex);
  if (driver.gpus.empty()) return CUDA_ERROR_NO_DEVICE;
  driver.initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  const CUresult status = Driver::instance().enter("cuDriverGetVersion");
  if (status == CUDA_SUCCESS) *version = CUDA_VERSION;
  return status;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = nullptr;
  switch (error) {
#define SIMULATED_NAME(name) \
  case name:                 \
    *text = #name;           \
    return CUDA_SUCCESS;
    SIMULATED_NAME(CUDA_SUCCESS)
    SIMULATED_NAME(CUDA_ERROR_INVALID_VALUE)
    SIMULATED_NAME(CUDA_ERROR_OUT_OF_MEMORY)
    SIMULATED_NAME(CUDA_ERROR_NOT_INITIALIZED)
    SIMULATED_NAME(CUDA_ERROR_NO_DEVICE)
    SIMULATED_NAME(CUDA_ERROR_INVALID_DEVICE)
    SIMULATED_NAME(CUDA_ERROR_INVALID_CONTEXT)
    SIMULATED_NAME(CUDA_ERROR_INVALID_HANDLE)
    SIMULATED_NAME(CUDA_ERROR_ALREADY_MAPPED)
    SIMULATED_NAME(CUDA_ERROR_NOT_READY)
    SIMULATED_NAME(CUDA_ERROR_NOT_PERMITTED)
    SIMULATED_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    SIMULATED_NAME(CUDA_ERROR_LAUNCH_FAILED)
    SIMULATED_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    SIMULATED_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    SIMULATED_NAME(CUDA_ERROR_UNKNOWN)
#undef SIMULATED_NAME
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const CUresult status = cuGetErrorName(error, text);
  if (status == CUDA_SUCCESS) *text = "told by the simulated driver";
  return status;
}

CUresult cuDeviceGetCount(int* count) {
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter("cuDeviceGetCount");
  if (status == CUDA_SUCCESS) *count = static_cast<int>(driver.gpus.size());
  return status;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Driver& driver = Driver::instance();
  if (const CUresult status = driver.enter("cuDeviceGet"); status != CUDA_SUCCESS) return status;
  if (ordinal < 0 || ordinal >= static_cast<int>(driver.gpus.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  const CUresult status = Driver::instance().enter("cuDeviceGetName");
  if (status == CUDA_SUCCESS) {
    std::snprintf(name, static_cast<std::size_t>(length), "Simulated GPU %d", device);
  }
  return status;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  const CUresult status = Driver::instance().enter("cuDeviceGetPCIBusId");
  // A domain that no machine has.
  if (status == CUDA_SUCCESS) {
    std::snprintf(id, static_cast<std::size_t>(length), "FFFF:%02X:00.0", device & 0xff);
  }
  return status;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter("cuDeviceTotalMem");
  if (status == CUDA_SUCCESS) {
    *bytes = driver.gpus[static_cast<std::size_t>(device)]->memory.capacity_bytes();
  }
  return status;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  static const std::map<CUdevice_attribute, int> kValues{
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1}};
  const CUresult status = Driver::instance().enter("cuDeviceGetAttribute");
  if (status != CUDA_SUCCESS) return status;
  if (!kValues.contains(which)) return CUDA_ERROR_INVALID_VALUE;
  *value = kValues.at(which);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter("cuDevicePrimaryCtxRetain");
  if (status != CUDA_SUCCESS) return status;
  const std::lock_guard lock(driver.mutex);
  Gpu* const gpu = driver.gpus[static_cast<std::size_t>(device)].get();
  ++gpu->retained;
  *context = reinterpret_cast<CUcontext>(gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter("cuDevicePrimaryCtxRelease");
  std::unique_lock lock(driver.mutex);
  Gpu* const gpu = driver.gpus[static_cast<std::size_t>(device)].get();
  if (gpu->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --gpu->retained;
  const bool last = std::all_of(driver.gpus.begin(), driver.gpus.end(),
                                [](const std::unique_ptr<Gpu>& one) { return one->retained == 0; });
  if (last) {
    driver.close_default_stream();
    driver.reap_all(lock);
  } else {
    driver.reap();
  }
  return status;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter("cuCtxPushCurrent");
  if (status != CUDA_SUCCESS) return status;
  const std::lock_guard lock(driver.mutex);
  auto* const gpu = reinterpret_cast<Gpu*>(context);
  const bool known = std::any_of(driver.gpus.begin(), driver.gpus.end(),
                                 [&](const std::unique_ptr<Gpu>& one) { return one.get() == gpu; });
  if (!known || gpu->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(gpu);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  const CUresult status = Driver::instance().enter("cuCtxPopCurrent");
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = reinterpret_cast<CUcontext>(current.back());
  current.pop_back();
  return status;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  const CUresult status = Driver::instance().enter("cuCtxGetCurrent");
  if (status == CUDA_SUCCESS) *context = reinterpret_cast<CUcontext>(current_gpu());
  return status;
}

void sluice_simulator_objects(SluiceSimulatedObjects* objects) {
  Driver& driver = Driver::instance();
  const std::lock_guard lock(driver.mutex);
  driver.reap();
  *objects = {};
  objects->streams = driver.streams.size() - driver.streams.count(nullptr);
  objects->events = driver.events.size();
  objects->registrations = driver.registered.size();
  for (const auto& gpu : driver.gpus) {
    objects->contexts += static_cast<std::uint64_t>(gpu->retained);
    gpu->memory.add_to(*objects);
  }
}

void sluice_simulator_fail(const char* function, std::int64_t call, int status, int forever) {
  Driver& driver = Driver::instance();
  const std::lock_guard lock(driver.mutex);
  driver.failing = function != nullptr ? function : "";
  driver.remaining = call;
  driver.failure = static_cast<CUresult>(status);
  driver.forever = forever != 0;
  driver.calls = 0;
}

std::uint64_t sluice_simulator_calls(void) {
  Driver& driver = Driver::instance();
  const std::lock_guard lock(driver.mutex);
  return driver.calls;
}

void sluice_simulator_fault(int status) {
  sluice::simulated::set_fault(static_cast<CUresult>(status));
}
}
