#include "device/cuda/cuda_device.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/mutex.hpp"
#include "device/cuda/cuda_event.hpp"
#include "device/cuda/cuda_memory.hpp"
#include "device/cuda/cuda_runtime.hpp"
#include "device/cuda/cuda_search.hpp"
#include "device/cuda/cuda_stream.hpp"

namespace sluice::device {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(const std::shared_ptr<const CudaContext>& context, const CudaDeviceInfo& info,
             std::uint64_t capacity_bytes)
      : runtime_(std::make_shared<CudaRuntime>(context)), memory_(context, capacity_bytes) {
    facts_.backend = "cuda";
    facts_.name = info.name;
    facts_.capacity_bytes = capacity_bytes;
    facts_.granularity_bytes = memory_.granularity_bytes();
    facts_.numa_node = info.numa_node;
  }

  const DeviceFacts& facts() const override { return facts_; }
  std::int64_t now_ns() const override { return CudaClock::now_ns(); }
  DeviceCounters counters() const override;

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return stream_over(std::make_shared<CudaQueue>(runtime_, name));
  }
  std::unique_ptr<Stream> wrap_stream(void* native, const std::string& name) override {
    return stream_over(std::make_shared<CudaQueue>(runtime_, name, static_cast<CUstream>(native)));
  }
  std::unique_ptr<Event> create_event() override {
    auto event = std::make_unique<CudaEvent>(runtime_);
    created_events_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a total for reports
    return event;
  }

  AddressRange reserve(std::uint64_t bytes) override {
    return own<AddressRange>(memory_.reserve(bytes));
  }
  PhysicalBlock create_block(std::uint64_t bytes) override {
    return own<PhysicalBlock>(memory_.create_block(bytes));
  }
  Mapping map(const AddressRange& range, std::uint64_t offset_bytes,
              const PhysicalBlock& block) override {
    return own<Mapping>(memory_.map(range.handle(), offset_bytes, block.handle()));
  }
  RawBuffer allocate(std::uint64_t bytes) override {
    return own<RawBuffer>(memory_.allocate(bytes));
  }
  HostRegistration register_host(void* data, std::uint64_t bytes) override {
    runtime_->registrations.add(data, bytes);
    return HostRegistration(this, data, bytes, 0);
  }

 protected:
  void release(AddressRange& range) noexcept override { memory_.release_range(range.handle()); }
  void release(PhysicalBlock& block) noexcept override { memory_.release_block(block.handle()); }
  void release(Mapping& mapping) noexcept override { memory_.unmap(mapping.handle()); }
  void release(RawBuffer& buffer) noexcept override { memory_.deallocate(buffer.handle()); }
  void release(HostRegistration& registration) noexcept override {
    runtime_->registrations.remove(registration.data());
  }

 private:
  std::unique_ptr<Stream> stream_over(std::shared_ptr<CudaQueue> queue);
  template <typename Resource>
  Resource own(const CudaMemory::Placement& placement) {
    return Resource(this, placement.data, placement.bytes, placement.handle);
  }

  DeviceFacts facts_;
  const std::shared_ptr<CudaRuntime> runtime_;
  CudaMemory memory_;
  std::atomic<std::uint64_t> created_events_ = 0;
  mutable Mutex queues_mutex_;
  std::vector<std::weak_ptr<CudaQueue>> queues_ SLUICE_GUARDED_BY(queues_mutex_);
};

std::unique_ptr<Stream> CudaDevice::stream_over(std::shared_ptr<CudaQueue> queue) {
  const MutexLock lock(queues_mutex_);
  std::erase_if(queues_, [](const std::weak_ptr<CudaQueue>& past) { return past.expired(); });
  queues_.push_back(queue);
  return std::make_unique<CudaStream>(std::move(queue));
}

DeviceCounters CudaDevice::counters() const {
  DeviceCounters counters = memory_.counters();
  counters.registration_calls = runtime_->registrations.calls();
  counters.peak_registered_bytes = runtime_->registrations.peak_bytes();
  counters.created_events = created_events_.load(std::memory_order_relaxed);
  {
    // Polls the queues, so that completed copies are counted.
    const CurrentContext current(*runtime_->context);
    const MutexLock lock(queues_mutex_);
    for (const std::weak_ptr<CudaQueue>& entry : queues_) {
      if (const std::shared_ptr<CudaQueue> queue = entry.lock()) queue->look_idle();
    }
  }
  for (std::size_t kind = 0; kind < kCopyKindCount; ++kind) {
    counters.copied_bytes[kind] = runtime_->copied_bytes[kind].load(std::memory_order_relaxed);
  }
  return counters;
}

std::uint64_t settle_capacity(const CudaDriver& driver, const CudaContext& context,
                              const CudaDeviceInfo& info, std::uint64_t wanted_bytes) {
  if (wanted_bytes > info.memory_bytes) {
    throw InputError("GPU " + std::to_string(info.ordinal) + " (" + info.name + ") has " +
                     format_bytes_exact(info.memory_bytes) + " of memory, less than the " +
                     format_bytes_exact(wanted_bytes) + " asked for");
  }
  if (wanted_bytes > 0) return wanted_bytes;
  const CurrentContext current(context);
  return free_cuda_bytes(driver);
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  CudaDriverSearch found = find_cuda_driver();
  if (found.driver == nullptr) {
    throw InputError("the cuda device is not available: " + found.missing);
  }
  const int count = count_cuda_devices(*found.driver);
  if (options.ordinal < 0 || options.ordinal >= count) {
    throw InputError("there is no GPU " + std::to_string(options.ordinal) +
                     ": the NVIDIA driver shows " + std::to_string(count) + " to this process");
  }
  const CudaDeviceInfo info = describe_cuda_device(*found.driver, options.ordinal);
  if (!info.virtual_memory) {
    throw InputError("GPU " + std::to_string(info.ordinal) + " (" + info.name +
                     ") cannot be used: its driver does not map physical memory into addresses");
  }
  CUdevice device = 0;
  found.driver->check(found.driver->cuDeviceGet(&device, options.ordinal), "finding a GPU");
  const auto context = std::make_shared<const CudaContext>(found.driver, device);
  const std::uint64_t capacity_bytes =
      settle_capacity(*found.driver, *context, info, options.capacity_bytes);
  return std::make_unique<CudaDevice>(context, info, capacity_bytes);
}

}  // namespace sluice::device
