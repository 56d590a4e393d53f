// The state that each rank of a run holds after each step, element by element of the whole
// tensors, so that copies on several ranks can be compared. Checkpoints and hashes read one copy of
// each.
//
// All state lies in pinned memory, which a device tells the test of when the run registers it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "tests/support/forwarding_device.hpp"
#include "tests/support/rank_sessions.hpp"

namespace sluice::testing {

class HeldState {
 public:
  // Each element of a whole tensor: its value, and the number of ranks that hold it.
  struct Tensor {
    std::vector<std::byte> bytes;
    std::vector<int> holders;
  };
  // By step, kind and name.
  using Tensors = std::map<std::tuple<std::int64_t, StateKind, std::string>, Tensor>;

  explicit HeldState(int ranks) : pinned_(static_cast<std::size_t>(ranks)) {}

  // The devices of the ranks, which are made in their order.
  RankDevices devices() {
    RankDevices devices;
    devices.make_backend = [this, rank = std::size_t{0}](const config::Config& config) mutable {
      train::Backend backend = one_threaded_backend(config);
      std::byte** const pinned = &pinned_.at(rank++);
      backend.make_device = [pinned, make = backend.make_device](std::uint64_t capacity_bytes) {
        return std::make_unique<Device>(make(capacity_bytes), *pinned);
      };
      return backend;
    };
    return devices;
  }

  // Compares the rank's state with that of the ranks before it.
  void note(const RankStep& at) {
    at.session.drain();
    for (const schedule::Buffer* home : train::Session::homes(at.plan.training())) {
      if (home->kind == StateKind::kGradient) continue;
      ASSERT_EQ(home->tier, Tier::kPinned);
      const auto unit = static_cast<std::size_t>(home->unit);
      ASSERT_EQ(home->elems, at.model.layout(unit).elems()) << "a shard";
      for (const model::PlacedTensor& tensor : at.model.layout(unit).tensors()) {
        const MutexLock lock(mutex_);
        add(at, home->kind, dtype_bytes(home->dtype), tensor,
            pinned_.at(static_cast<std::size_t>(at.rank)) + home->offset_bytes);
      }
    }
  }

  // The first byte of a tensor's part on the rank.
  std::byte* at(const RankStep& at, StateKind kind, const std::string& name) const {
    for (const schedule::Buffer* home : train::Session::homes(at.plan.training())) {
      if (home->kind != kind) continue;
      for (const auto& tensor : at.model.layout(static_cast<std::size_t>(home->unit)).tensors()) {
        if (tensor.spec.name != name) continue;
        return pinned_.at(static_cast<std::size_t>(at.rank)) + home->offset_bytes +
               tensor.first_elem * dtype_bytes(home->dtype);
      }
    }
    throw Error("the rank has no " + name);
  }

  // One sentence for each tensor of a rank that differs from another rank's.
  std::vector<std::string> differences() const {
    const MutexLock lock(mutex_);
    return differences_;
  }
  Tensors take_tensors() {
    const MutexLock lock(mutex_);
    return std::move(tensors_);
  }

 private:
  class Device final : public ForwardingDevice {
   public:
    Device(std::unique_ptr<device::Device> inner, std::byte*& pinned)
        : ForwardingDevice(std::move(inner)), pinned_(pinned) {}
    // The first is the arena with the homes.
    device::HostRegistration register_host(void* data, std::uint64_t bytes) override {
      if (pinned_ == nullptr) pinned_ = static_cast<std::byte*>(data);
      return inner().register_host(data, bytes);
    }

   private:
    std::byte*& pinned_;
  };

  void add(const RankStep& at, StateKind kind, std::size_t elem_bytes,
           const model::PlacedTensor& placed, const std::byte* home) SLUICE_REQUIRES(mutex_) {
    const model::TensorSpec& spec = placed.spec;
    Tensor& whole = tensors_[{at.step, kind, spec.name}];
    whole.bytes.resize(spec.whole_elems() * elem_bytes);
    whole.holders.resize(spec.whole_elems());
    std::uint64_t other = 0;
    for (std::uint64_t elem = 0; elem < spec.elems(); ++elem) {
      const std::uint64_t to = spec.run_at(elem).first;
      const std::byte* const own = home + (placed.first_elem + elem) * elem_bytes;
      std::byte* const known = whole.bytes.data() + to * elem_bytes;
      if (whole.holders[to]++ == 0) {
        std::memcpy(known, own, elem_bytes);
      } else {
        other += std::memcmp(known, own, elem_bytes) != 0 ? 1 : 0;
      }
    }
    if (other == 0) return;
    differences_.push_back("step " + std::to_string(at.step) + ", rank " + std::to_string(at.rank) +
                           ": " + std::to_string(other) + " elements of the " +
                           std::string(state_kind_name(kind)) + " of " + spec.name);
  }

  mutable Mutex mutex_;
  std::vector<std::byte*> pinned_;  // by rank; each written by its own thread
  Tensors tensors_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::string> differences_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::testing
