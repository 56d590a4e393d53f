// A device that counts everything and holds nothing: it has addresses without memory. Replays use
// it, and benchmarks that time an allocator alone.
//
// Its streams run nothing, so queued work is done at once. An event recorded while hold_events() is
// on is the exception: it is done when it is released, as a trace demands.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.hpp"

namespace sluice::device {

class CountingDevice final : public Device {
 public:
  explicit CountingDevice(std::uint64_t capacity_bytes);

  const DeviceFacts& facts() const override { return facts_; }
  DeviceCounters counters() const override { return counters_; }
  std::int64_t now_ns() const override { return 0; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  std::unique_ptr<Stream> wrap_stream(void* native, const std::string& name) override;
  std::unique_ptr<Event> create_event() override;
  AddressRange reserve(std::uint64_t bytes) override;
  PhysicalBlock create_block(std::uint64_t bytes) override;
  Mapping map(const AddressRange& range, std::uint64_t offset_bytes,
              const PhysicalBlock& block) override;
  RawBuffer allocate(std::uint64_t bytes) override;
  HostRegistration register_host(void* data, std::uint64_t bytes) override;

  // The state shared by all events recorded during one hold. They are done once it is released, or
  // once the host has waited for one of them.
  struct Hold {
    bool released = false;
  };
  void hold_events(std::shared_ptr<Hold> hold) { hold_ = std::move(hold); }
  const std::shared_ptr<Hold>& hold() const { return hold_; }

 protected:
  void release(AddressRange&) noexcept override {}
  void release(PhysicalBlock& block) noexcept override;
  void release(Mapping&) noexcept override {}
  void release(RawBuffer& buffer) noexcept override;
  void release(HostRegistration&) noexcept override {}

 private:
  void take(std::uint64_t bytes);

  DeviceFacts facts_;
  DeviceCounters counters_;
  std::uint64_t next_address_ = std::uint64_t{1} << 44;  // never dereferenced
  std::uint64_t next_handle_ = 1;
  std::shared_ptr<Hold> hold_;
};

}  // namespace sluice::device
