// A device that passes every call on, and fails the Nth one that obtains something.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "tests/support/forwarding_device.hpp"

namespace sluice::allocator {

class FailingDevice final : public testing::ForwardingDevice {
 public:
  explicit FailingDevice(device::Device& inner) : ForwardingDevice(inner), facts_(inner.facts()) {}
  // The call number `call` from now on (0: the next) throws DeviceError; -1: none.
  void fail_call(std::int64_t call) {
    forever_ = false;
    remaining_ = call;
  }
  // The given call and every later one throw.
  void fail_from_call(std::int64_t call) {
    forever_ = true;
    remaining_ = call;
  }
  // Calls that obtained something, or tried to.
  std::uint64_t calls() const { return calls_; }

  void set_numa_node(int os_index) { facts_.numa_node = os_index; }

  const device::DeviceFacts& facts() const override { return facts_; }
  std::unique_ptr<device::Event> create_event() override {
    count("create_event");
    return inner().create_event();
  }
  device::AddressRange reserve(std::uint64_t bytes) override {
    count("reserve");
    return inner().reserve(bytes);
  }
  device::PhysicalBlock create_block(std::uint64_t bytes) override {
    count("create_block");
    return inner().create_block(bytes);
  }
  device::Mapping map(const device::AddressRange& range, std::uint64_t offset_bytes,
                      const device::PhysicalBlock& block) override {
    count("map");
    return inner().map(range, offset_bytes, block);
  }
  device::RawBuffer allocate(std::uint64_t bytes) override {
    count("allocate");
    return inner().allocate(bytes);
  }
  device::HostRegistration register_host(void* data, std::uint64_t bytes) override {
    count("register_host");
    return inner().register_host(data, bytes);
  }

 private:
  void count(const char* call) {
    ++calls_;
    if (remaining_ < 0) return;
    const bool fails = remaining_ == 0;
    if (!fails || !forever_) --remaining_;
    if (fails) throw DeviceError(std::string("injected failure of ") + call);
  }
  device::DeviceFacts facts_;
  std::atomic<std::int64_t> remaining_ = -1;
  std::atomic<bool> forever_ = false;
  std::atomic<std::uint64_t> calls_ = 0;
};

}  // namespace sluice::allocator
