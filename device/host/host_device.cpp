#include "device/host/host_device.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/topology.hpp"
#include "device/host/caller_stream.hpp"
#include "device/host/host_event.hpp"
#include "device/host/host_runtime.hpp"
#include "device/host/host_stream.hpp"

namespace sluice::device {

namespace {

class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : runtime_(std::make_shared<HostRuntime>(options)) {
    facts_.backend = "host";
    facts_.name = read_host_topology().cpu_name;
    facts_.capacity_bytes = options.capacity_bytes;
    facts_.granularity_bytes = kPageBytes;
  }

  const DeviceFacts& facts() const override { return facts_; }
  std::int64_t now_ns() const override { return host_now_ns(); }
  DeviceCounters counters() const override {
    DeviceCounters counters = runtime_->memory.counters();
    counters.created_events = created_events_.load(std::memory_order_relaxed);
    for (std::size_t kind = 0; kind < kCopyKindCount; ++kind) {
      counters.copied_bytes[kind] = runtime_->copied_bytes[kind].load(std::memory_order_relaxed);
    }
    return counters;
  }

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return std::make_unique<HostStream>(runtime_, name);
  }
  std::unique_ptr<Stream> wrap_stream(void*, const std::string& name) override {
    return std::make_unique<CallerStream>(runtime_, name);
  }
  std::unique_ptr<Event> create_event() override {
    created_events_.fetch_add(1, std::memory_order_relaxed);
    return std::make_unique<HostEvent>(runtime_);
  }

  AddressRange reserve(std::uint64_t bytes) override {
    return own<AddressRange>(runtime_->memory.reserve(bytes));
  }
  PhysicalBlock create_block(std::uint64_t bytes) override {
    return own<PhysicalBlock>(runtime_->memory.create_block(bytes));
  }
  Mapping map(const AddressRange& range, std::uint64_t offset_bytes,
              const PhysicalBlock& block) override {
    return own<Mapping>(runtime_->memory.map(range.handle(), offset_bytes, block.handle()));
  }
  RawBuffer allocate(std::uint64_t bytes) override {
    return own<RawBuffer>(runtime_->memory.allocate(bytes));
  }
  HostRegistration register_host(void* data, std::uint64_t bytes) override {
    return own<HostRegistration>(runtime_->memory.register_host(data, bytes));
  }
  void check_host_access(const void* data, std::uint64_t bytes, bool writes) override {
    if (runtime_->races == nullptr || bytes == 0) return;
    std::vector<HostMemory::PhysicalSpan> spans;
    runtime_->memory.locate(data, bytes, spans);
    std::vector<RaceDetector::Access> accesses;
    for (const auto& span : spans) accesses.push_back({span, writes});
    if (const auto race = runtime_->races->check_host(accesses)) throw DeviceError(*race);
  }

  HostRuntime& runtime() { return *runtime_; }

 protected:
  void release(AddressRange& range) noexcept override {
    runtime_->memory.release_range(range.handle());
  }
  void release(PhysicalBlock& block) noexcept override {
    runtime_->memory.release_block(block.handle());
  }
  void release(Mapping& mapping) noexcept override { runtime_->memory.unmap(mapping.handle()); }
  void release(RawBuffer& buffer) noexcept override {
    runtime_->memory.deallocate(buffer.handle());
  }
  void release(HostRegistration& registration) noexcept override {
    runtime_->memory.unregister_host(registration.handle());
  }

 private:
  template <typename Resource>
  Resource own(const HostMemory::Placement& placement) {
    return Resource(this, placement.data, placement.bytes, placement.handle);
  }

  DeviceFacts facts_;
  const std::shared_ptr<HostRuntime> runtime_;
  std::atomic<std::uint64_t> created_events_ = 0;
};

}  // namespace

void HostRuntime::copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToDevice:
      upload.copy(destination, source, bytes);
      break;
    case CopyKind::kDeviceToHost:
      download.copy(destination, source, bytes);
      break;
    case CopyKind::kDeviceToDevice:
      std::memcpy(destination, source, bytes);
      break;
  }
  // Relaxed: a total for reports; a reader after a synchronize is ordered by that.
  copied_bytes[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_relaxed);
}

std::int64_t host_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options) {
  if (options.capacity_bytes == 0) {
    throw InputError("the host device needs a capacity of at least one byte");
  }
  if (!(options.link_bandwidth_bytes_per_s >= 0.0) || !(options.link_latency_s >= 0.0)) {
    throw InputError("the link of the host device needs a bandwidth and a latency of 0 or more");
  }
  return std::make_unique<HostDevice>(options);
}

}  // namespace sluice::device
