// A host device that writes down what a pager asks of it: mappings, copies, and every order between
// streams. Tests turn the list into a schedule, which states these orders and no others.
//
// Streams of the host program are queues of their own, as on a GPU: wrap_stream() makes one for
// each native handle. Copies move no bytes, because the list alone is judged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "device/host/host_device.hpp"
#include "tests/support/forwarding_device.hpp"

namespace sluice::testing {

struct ObservedCall {
  enum class Kind : std::uint8_t {
    kMap,          // page `page` of range `range` leads to block `block`
    kCopy,         // to range `range`, on stream `stream`
    kRecord,       // `event`, on `stream`
    kWait,         // of `stream` for `event`
    kAwaitEvent,   // by the thread `by_program`
    kAwaitStream,  // by the thread `by_program`
    kUse           // of range `range`, on stream `stream`; noted by the test
  };
  Kind kind = Kind::kUse;
  std::uint32_t stream = 0, range = 0, page = 0, block = 0;
  const void* event = nullptr;
  bool by_program = false;  // else by a thread of the pager
};

class ObservedDevice final : public ForwardingDevice {
 public:
  explicit ObservedDevice(std::uint64_t capacity_bytes)
      : ForwardingDevice(device::make_host_device({.capacity_bytes = capacity_bytes})),
        program_(std::this_thread::get_id()) {}

  // The calls so far, in their order.
  std::vector<ObservedCall> calls() const {
    const MutexLock lock(mutex_);
    return calls_;
  }
  // The host program has queued work on its default stream that reads the range of `address`.
  void note_use(const std::byte* address) {
    note({.kind = ObservedCall::Kind::kUse, .stream = kProgramStream, .range = range_of(address)});
  }
  static constexpr std::uint32_t kProgramStream = 0;

  std::unique_ptr<device::Stream> create_stream(const std::string& name) override {
    return std::make_unique<Stream>(*this, inner().create_stream(name), ++last_stream_);
  }
  std::unique_ptr<device::Stream> wrap_stream(void* native, const std::string& name) override {
    static_cast<void>(native);  // one stream is enough
    return std::make_unique<Stream>(*this, inner().create_stream(name), kProgramStream);
  }
  std::unique_ptr<device::Event> create_event() override {
    return std::make_unique<Event>(*this, inner().create_event());
  }
  device::AddressRange reserve(std::uint64_t bytes) override {
    device::AddressRange range = inner().reserve(bytes);
    const MutexLock lock(mutex_);
    ranges_[range.data()] = static_cast<std::uint32_t>(ranges_.size());
    return range;
  }
  device::PhysicalBlock create_block(std::uint64_t bytes) override {
    device::PhysicalBlock block = inner().create_block(bytes);
    const MutexLock lock(mutex_);
    blocks_.try_emplace(block.handle(), static_cast<std::uint32_t>(blocks_.size()));
    return block;
  }
  device::Mapping map(const device::AddressRange& range, std::uint64_t offset_bytes,
                      const device::PhysicalBlock& block) override {
    const auto page = static_cast<std::uint32_t>(offset_bytes / facts().granularity_bytes);
    std::uint32_t number = 0;
    {
      const MutexLock lock(mutex_);
      number = blocks_.at(block.handle());
    }
    note({.kind = ObservedCall::Kind::kMap,
          .range = range_of(range.data()),
          .page = page,
          .block = number});
    return inner().map(range, offset_bytes, block);
  }

 private:
  class Event final : public device::Event {
   public:
    Event(ObservedDevice& device, std::unique_ptr<device::Event> inner)
        : device_(device), inner_(std::move(inner)) {}
    bool done() const override { return inner_->done(); }
    void synchronize(Deadline deadline, const char* what) const override {
      inner_->synchronize(deadline, what);
      device_.note({.kind = ObservedCall::Kind::kAwaitEvent, .event = this});
    }
    std::int64_t time_ns() const override { return inner_->time_ns(); }
    device::Event& inner() const { return *inner_; }

   private:
    ObservedDevice& device_;
    const std::unique_ptr<device::Event> inner_;
  };
  class Stream final : public device::Stream {
   public:
    Stream(ObservedDevice& device, std::unique_ptr<device::Stream> inner, std::uint32_t number)
        : device_(device), inner_(std::move(inner)), number_(number) {}
    void launch(std::function<void()> work,
                std::span<const device::MemoryAccess> accesses) override {
      inner_->launch(std::move(work), accesses);
    }
    void copy(void* destination, const void*, std::uint64_t, device::CopyKind) override {
      const auto* const address = static_cast<const std::byte*>(destination);
      device_.note({.kind = ObservedCall::Kind::kCopy,
                    .stream = number_,
                    .range = device_.range_of(address)});
    }
    void record(device::Event& event) override {
      inner_->record(static_cast<Event&>(event).inner());
      device_.note({.kind = ObservedCall::Kind::kRecord, .stream = number_, .event = &event});
    }
    void wait(const device::Event& event) override {
      inner_->wait(static_cast<const Event&>(event).inner());
      device_.note({.kind = ObservedCall::Kind::kWait, .stream = number_, .event = &event});
    }
    void synchronize(Deadline deadline) override {
      inner_->synchronize(deadline);
      device_.note({.kind = ObservedCall::Kind::kAwaitStream, .stream = number_});
    }

   private:
    ObservedDevice& device_;
    const std::unique_ptr<device::Stream> inner_;
    const std::uint32_t number_;
  };

  void note(ObservedCall call) {
    call.by_program = std::this_thread::get_id() == program_;
    const MutexLock lock(mutex_);
    calls_.push_back(call);
  }
  // Ranges have numbers in the order in which they were reserved.
  std::uint32_t range_of(const std::byte* address) const {
    const MutexLock lock(mutex_);
    return std::prev(ranges_.upper_bound(address))->second;
  }

  const std::thread::id program_;
  std::uint32_t last_stream_ = kProgramStream;
  mutable Mutex mutex_;
  std::map<const std::byte*, std::uint32_t> ranges_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint32_t> blocks_ SLUICE_GUARDED_BY(mutex_);  // by handle
  std::vector<ObservedCall> calls_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::testing
