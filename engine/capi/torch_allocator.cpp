// The three functions that PyTorch's CUDAPluggableAllocator calls. They have no handle, so a table
// of the process says which allocator serves a device. The table, with the log sink, is the
// library's only global state that a program can change.
#include <array>
#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"

namespace sluice::capi {
namespace {

using host::FrameworkAllocator;

constexpr std::size_t kMostDevices = 64;

struct TorchTable {
  Mutex mutex;
  std::array<std::shared_ptr<FrameworkAllocator>, kMostDevices> attached SLUICE_GUARDED_BY(mutex);
};
// Never destroyed: PyTorch frees tensors while the process ends.
TorchTable& table() {
  static auto* const instance = new TorchTable;
  return *instance;
}

// Null if none is attached.
std::shared_ptr<FrameworkAllocator> attached(int device) {
  if (device < 0 || static_cast<std::size_t>(device) >= kMostDevices) return nullptr;
  TorchTable& of = table();
  const MutexLock lock(of.mutex);
  return of.attached[static_cast<std::size_t>(device)];
}

// The allocator of a block; null if no attached one has it.
std::shared_ptr<FrameworkAllocator> holder_of(const void* data) {
  TorchTable& of = table();
  const MutexLock lock(of.mutex);
  for (const std::shared_ptr<FrameworkAllocator>& entry : of.attached) {
    if (entry != nullptr && entry->holds(data)) return entry;
  }
  return nullptr;
}

void attach(const std::shared_ptr<FrameworkAllocator>& allocator) {
  const auto device = static_cast<std::size_t>(allocator->engine().options().device_id);
  if (device >= kMostDevices) throw InputError("PyTorch's table has devices 0 to 63");
  TorchTable& of = table();
  const MutexLock lock(of.mutex);
  if (of.attached[device] != nullptr && of.attached[device] != allocator) {
    throw CallError(SLUICE_E_STATE, "another allocator is attached to device " +
                                        std::to_string(device) + "; destroy it first");
  }
  of.attached[device] = allocator;
}

}  // namespace

void detach_torch(const std::shared_ptr<FrameworkAllocator>& allocator) noexcept {
  TorchTable& of = table();
  const MutexLock lock(of.mutex);
  for (std::shared_ptr<FrameworkAllocator>& entry : of.attached) {
    if (entry == allocator) entry = nullptr;
  }
}

}  // namespace sluice::capi

using sluice::capi::run_call;

sluice_status sluice_torch_attach(sluice_allocator* allocator) {
  return run_call("sluice_torch_attach", [&] {
    sluice::capi::attach(sluice::capi::required(allocator, "allocator").inner);
  });
}

void* sluice_torch_alloc(ptrdiff_t size, int device, void* stream) {
  void* data = nullptr;
  const sluice_status status = run_call("sluice_torch_alloc", [&] {
    const auto allocator = sluice::capi::attached(device);
    if (allocator == nullptr) {
      throw sluice::capi::CallError(SLUICE_E_STATE,
                                    "no allocator is attached to device " + std::to_string(device));
    }
    if (size < 0) throw sluice::InputError("size is negative");
    data = allocator->allocate(static_cast<std::uint64_t>(size), stream, 0);
  });
  return status == SLUICE_OK ? data : nullptr;
}

// PyTorch cannot be told of a failure. Memory whose use was not recorded could be overwritten, so
// it is never reused. A tensor may lie in memory of another library: PyTorch's own allocator, too,
// records no use of that.
void sluice_torch_record_stream(void* data, void* stream) {
  std::shared_ptr<sluice::host::FrameworkAllocator> allocator;
  const sluice_status status = run_call("sluice_torch_record_stream", [&] {
    if (data != nullptr) allocator = sluice::capi::holder_of(data);
    if (allocator != nullptr) allocator->record_use(data, stream);
  });
  if (status == SLUICE_OK || allocator == nullptr) return;
  static_cast<void>(run_call("sluice_torch_record_stream", [&] {
    allocator->withhold(data);
    sluice::log(sluice::LogLevel::kWarning,
                "a use of memory by another stream could not be recorded; it is not reused");
  }));
}

// PyTorch cannot be told of a failure. A block is gone if its allocator is.
void sluice_torch_free(void* data, ptrdiff_t, int device, void*) {
  const sluice_status status = run_call("sluice_torch_free", [&] {
    const auto allocator = sluice::capi::attached(device);
    if (allocator != nullptr) allocator->free(data);
  });
  if (status != SLUICE_E_INPUT) return;
  static_cast<void>(run_call("sluice_torch_free", [] {
    sluice::log(sluice::LogLevel::kWarning,
                "sluice_torch_free was given an address that the attached allocator does not have");
  }));
}
