// A device that passes every call on to another: the base of test devices that change a few calls.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/device.hpp"

namespace sluice::testing {

// Resources belong to the inner device, which also takes them back: their release does not pass
// here.
class ForwardingDevice : public device::Device {
 public:
  // The inner device must outlive this one.
  explicit ForwardingDevice(device::Device& inner) : inner_(inner) {}
  explicit ForwardingDevice(std::unique_ptr<device::Device> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  const device::DeviceFacts& facts() const override { return inner_.facts(); }
  device::DeviceCounters counters() const override { return inner_.counters(); }
  std::int64_t now_ns() const override { return inner_.now_ns(); }
  std::unique_ptr<device::Stream> create_stream(const std::string& name) override {
    return inner_.create_stream(name);
  }
  std::unique_ptr<device::Stream> wrap_stream(void* native, const std::string& name) override {
    return inner_.wrap_stream(native, name);
  }
  std::unique_ptr<device::Event> create_event() override { return inner_.create_event(); }
  device::AddressRange reserve(std::uint64_t bytes) override { return inner_.reserve(bytes); }
  device::PhysicalBlock create_block(std::uint64_t bytes) override {
    return inner_.create_block(bytes);
  }
  device::Mapping map(const device::AddressRange& range, std::uint64_t offset_bytes,
                      const device::PhysicalBlock& block) override {
    return inner_.map(range, offset_bytes, block);
  }
  device::RawBuffer allocate(std::uint64_t bytes) override { return inner_.allocate(bytes); }
  device::HostRegistration register_host(void* data, std::uint64_t bytes) override {
    return inner_.register_host(data, bytes);
  }
  void check_host_access(const void* data, std::uint64_t bytes, bool writes) override {
    inner_.check_host_access(data, bytes, writes);
  }

 protected:
  void release(device::AddressRange&) noexcept override {}
  void release(device::PhysicalBlock&) noexcept override {}
  void release(device::Mapping&) noexcept override {}
  void release(device::RawBuffer&) noexcept override {}
  void release(device::HostRegistration&) noexcept override {}

  device::Device& inner() { return inner_; }

 private:
  std::unique_ptr<device::Device> owned_;  // may be null
  device::Device& inner_;
};

}  // namespace sluice::testing
