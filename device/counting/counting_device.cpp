#include "device/counting/counting_device.hpp"

#include <algorithm>
#include <utility>

namespace sluice::device {
namespace {

class CountedEvent final : public Event {
 public:
  bool done() const override { return hold_ == nullptr || hold_->released; }
  void synchronize(Deadline, const char*) const override {
    if (hold_ != nullptr) hold_->released = true;
  }
  std::int64_t time_ns() const override { return 0; }
  void set_hold(std::shared_ptr<CountingDevice::Hold> hold) { hold_ = std::move(hold); }

 private:
  std::shared_ptr<CountingDevice::Hold> hold_;
};

class CountedStream final : public Stream {
 public:
  explicit CountedStream(const CountingDevice& device) : device_(device) {}
  void launch(std::function<void()> work, std::span<const MemoryAccess>) override { work(); }
  void copy(void*, const void*, std::uint64_t, CopyKind) override {}
  void record(Event& event) override {
    dynamic_cast<CountedEvent&>(event).set_hold(device_.hold());
  }
  void wait(const Event&) override {}
  void synchronize(Deadline) override {}

 private:
  const CountingDevice& device_;
};

}  // namespace

CountingDevice::CountingDevice(std::uint64_t capacity_bytes) {
  facts_.backend = "counting";
  facts_.name = "a device that only counts";
  facts_.capacity_bytes = capacity_bytes;
}

std::unique_ptr<Stream> CountingDevice::create_stream(const std::string&) {
  return std::make_unique<CountedStream>(*this);
}

std::unique_ptr<Stream> CountingDevice::wrap_stream(void*, const std::string& name) {
  return create_stream(name);
}

std::unique_ptr<Event> CountingDevice::create_event() {
  ++counters_.created_events;
  return std::make_unique<CountedEvent>();
}

AddressRange CountingDevice::reserve(std::uint64_t bytes) {
  const std::uint64_t address = next_address_;
  next_address_ += round_up(bytes, facts_.granularity_bytes) + facts_.granularity_bytes;
  return AddressRange(this, reinterpret_cast<void*>(address), bytes, next_handle_++);
}

void CountingDevice::take(std::uint64_t bytes) {
  const std::uint64_t available_bytes = facts_.capacity_bytes - counters_.live_bytes;
  if (bytes > available_bytes) {
    throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes, available_bytes);
  }
  ++counters_.allocation_calls;
  counters_.live_bytes += bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
}

PhysicalBlock CountingDevice::create_block(std::uint64_t bytes) {
  take(bytes);
  return PhysicalBlock(this, nullptr, bytes, next_handle_++);
}

Mapping CountingDevice::map(const AddressRange& range, std::uint64_t offset_bytes,
                            const PhysicalBlock& block) {
  ++counters_.map_calls;
  return Mapping(this, range.data() + offset_bytes, block.bytes(), next_handle_++);
}

RawBuffer CountingDevice::allocate(std::uint64_t bytes) {
  take(bytes);
  const AddressRange range = reserve(bytes);
  return RawBuffer(this, range.data(), bytes, next_handle_++);
}

HostRegistration CountingDevice::register_host(void* data, std::uint64_t bytes) {
  ++counters_.registration_calls;
  return HostRegistration(this, data, bytes, next_handle_++);
}

void CountingDevice::release(PhysicalBlock& block) noexcept {
  counters_.live_bytes -= block.bytes();
}

void CountingDevice::release(RawBuffer& buffer) noexcept {
  counters_.live_bytes -= buffer.bytes();
}

}  // namespace sluice::device
