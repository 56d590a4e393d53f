// The narrow boundary to an accelerator: streams, events, copies, raw and virtual memory.
//
// Two implementations exist: device/host (CPU memory, everywhere) and device/cuda (a GPU). Both
// obey the same laws, checked by one typed contract suite (tests/contract/device_contract.hpp):
//   1. Memory is capped at `facts().capacity_bytes`; a request beyond it throws
//      OutOfMemory(kDevice).
//   2. Virtual memory has a granularity. A PhysicalBlock is mapped whole or not at all, and map()
//      sets the access. One block may be mapped at several ranges at once (aliases).
//   3. Streams are asynchronous in-order queues. Events order streams among each other.
//   4. The stream keeps a failure inside queued work, and so does every later event of it. Every
//      later synchronize throws the failure, and work queued after it is dropped. A stream that
//      waits for such an event takes over the failure.
// Threads: Device and Event are thread-safe. One thread at a time may use a Stream, except for
// record() and wait(), which any thread may call at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::device {

enum class CopyKind : std::uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };
inline constexpr std::size_t kCopyKindCount = 3;

// One range that queued work touches. A debug device uses it to report races.
struct MemoryAccess {
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  bool writes = false;
};

struct DeviceFacts {
  std::string backend;  // "host" or "cuda"
  std::string name;     // "AMD EPYC ...", "NVIDIA H200"
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granularity_bytes = kPageBytes;  // of physical blocks and mapping offsets
  int numa_node = -1;  // OS index of the host's node nearest to it; -1: none, or not known
};

// Counted by the device itself, independently of the ledger, so that "plan = run"
// is measured twice.
struct DeviceCounters {
  std::uint64_t live_bytes = 0;  // physical blocks + raw buffers
  std::uint64_t peak_bytes = 0;
  std::uint64_t allocation_calls = 0;  // create_block and allocate
  std::uint64_t map_calls = 0;
  std::uint64_t registration_calls = 0;
  std::uint64_t peak_registered_bytes = 0;  // of host memory known to the device
  std::uint64_t created_events = 0;
  std::array<std::uint64_t, kCopyKindCount> copied_bytes{};  // completed copies, by CopyKind
};

// A point in a stream. Recording again replaces the earlier point.
class Event {
 public:
  virtual ~Event() = default;
  // True once all work queued before the last record has finished (or failed). True
  // if never recorded.
  virtual bool done() const = 0;
  // Blocks the calling thread; throws the stream's stored error, or TimeoutError naming `what`.
  virtual void synchronize(Deadline deadline, const char* what) const = 0;
  // The time at which the recorded point was reached, in nanoseconds of the Device::now_ns
  // clock. Precondition: done().
  virtual std::int64_t time_ns() const = 0;
};

// An in-order asynchronous queue. Destruction drains it.
class Stream {
 public:
  virtual ~Stream() = default;

  // Queues `work` after all earlier entries. On the host device the stream's worker runs it. On
  // CUDA it is called at once, and the work that it launches on native() is queued. An exception
  // from `work` becomes the stream's error.
  virtual void launch(std::function<void()> work, std::span<const MemoryAccess> accesses = {}) = 0;
  // Queues a copy. The ranges must not overlap and must stay valid until it has finished.
  virtual void copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) = 0;
  virtual void record(Event& event) = 0;
  // Later entries start only after the point that `event` holds at this call.
  virtual void wait(const Event& event) = 0;
  // Blocks until the queue is empty; throws its stored error, or TimeoutError.
  virtual void synchronize(Deadline deadline) = 0;
  // cudaStream_t on CUDA; null on the host device.
  virtual void* native() const { return nullptr; }
};

class Device;

// A move-only handle that returns its resource to the device; the base of the five resources below.
// Release never throws.
template <typename Tag>
class DeviceResource {
 public:
  DeviceResource() = default;
  DeviceResource(Device* device, void* data, std::uint64_t bytes, std::uint64_t handle)
      : device_(device), data_(data), bytes_(bytes), handle_(handle) {}
  DeviceResource(DeviceResource&& other) noexcept { swap(other); }
  DeviceResource& operator=(DeviceResource&& other) noexcept {
    DeviceResource(std::move(other)).swap(*this);
    return *this;
  }
  DeviceResource(const DeviceResource&) = delete;
  DeviceResource& operator=(const DeviceResource&) = delete;
  ~DeviceResource();  // calls Device::release(*this)

  explicit operator bool() const { return device_ != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t handle() const { return handle_; }

 private:
  void swap(DeviceResource& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(handle_, other.handle_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t handle_ = 0;  // the backend's identifier
};

using AddressRange = DeviceResource<struct AddressRangeTag>;    // reserved addresses, no memory
using PhysicalBlock = DeviceResource<struct PhysicalBlockTag>;  // memory, no address (data() null)
using Mapping = DeviceResource<struct MappingTag>;              // a block at an address of a range
using RawBuffer = DeviceResource<struct RawBufferTag>;  // memory with an address (malloc-like)
using HostRegistration =
    DeviceResource<struct HostRegistrationTag>;  // host pages known to the device

class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual const DeviceFacts& facts() const = 0;
  virtual DeviceCounters counters() const = 0;
  // The clock of Event::time_ns: steady nanoseconds since an arbitrary start.
  virtual std::int64_t now_ns() const = 0;

  // name: for error messages and debuggers ("compute", "h2d").
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  // A stream over a queue of the host program, which must outlive it and may go on using it.
  // native: a cudaStream_t, null for CUDA's default stream. The host device has no queues: there,
  // work runs on the calling thread before the call returns, and a wait for an event blocks the
  // thread.
  virtual std::unique_ptr<Stream> wrap_stream(void* native, const std::string& name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  // Virtual memory. bytes and offset are multiples of facts().granularity_bytes (else
  // InternalError). Destroy the Mapping before its block and range; it must outlive queued work
  // that uses it.
  virtual AddressRange reserve(std::uint64_t bytes) = 0;
  virtual PhysicalBlock create_block(std::uint64_t bytes) = 0;
  virtual Mapping map(const AddressRange& range, std::uint64_t offset_bytes,
                      const PhysicalBlock& block) = 0;

  // Plain device memory, 256-byte aligned.
  virtual RawBuffer allocate(std::uint64_t bytes) = 0;
  // Makes host pages fast to copy (cudaHostRegister). data is page-aligned. One copy may cross from
  // a registration into the adjoining one; the device splits it for a driver that cannot do this.
  virtual HostRegistration register_host(void* data, std::uint64_t bytes) = 0;

  // Tells a debugging device that the calling host thread touches [data, data + bytes). Throws
  // DeviceError if queued work that writes it (or reads it, if `writes`) may not have finished.
  virtual void check_host_access(const void* /*data*/, std::uint64_t /*bytes*/, bool /*writes*/) {}

 protected:
  template <typename Tag>
  friend class DeviceResource;
  virtual void release(AddressRange&) noexcept = 0;
  virtual void release(PhysicalBlock&) noexcept = 0;
  virtual void release(Mapping&) noexcept = 0;
  virtual void release(RawBuffer&) noexcept = 0;
  virtual void release(HostRegistration&) noexcept = 0;
};

template <typename Tag>
DeviceResource<Tag>::~DeviceResource() {
  if (device_ != nullptr) device_->release(*this);
}

}  // namespace sluice::device
