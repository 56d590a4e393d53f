// Model state between steps: filled at the start, read for checkpoints, in place where it can be.
//
// Homes in pinned memory are visited where they lie; those on the device and on storage go through
// the pinned I/O window, a piece at a time, so no more than the window is ever held. Not for use
// while a schedule runs. Movement here is counted by the device and the storage engine like any
// other.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/run_memory.hpp"

namespace sluice::runtime {

class StateStore {
 public:
  // The I/O window holds one piece of every kind of state at once.
  static constexpr std::uint64_t kWindowElems = 65536;
  static constexpr std::uint64_t kWindowBytes = kWindowElems * (4 + 4 + 4 + 4);

  enum class Access { kRead, kWrite };
  // data[i]: elements [begin, end) of the i-th kind asked for.
  using Visitor =
      std::function<void(std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data)>;

  // `schedule`: any of the run's packed schedules (they share the homes). durable: of a durable
  // run, else null.
  StateStore(device::Device& device, RunMemory& memory, const schedule::Schedule& schedule,
             DurableState* durable = nullptr);

  // Homes that have a shadow and their shadows change roles: the state between steps is in the
  // others.
  void flip() { flipped_ = !flipped_; }

  DType dtype(StateKind kind, std::int32_t unit) const { return home(kind, unit)->dtype; }

  // Calls visitor for consecutive ranges that cover elements [begin, end) of the unit, with all
  // `kinds` side by side. begin and end: multiples of 4,096 or the home's end. State of whole
  // tensors is visited alone: its elements are its own.
  // kWrite: the visitor's result goes to the home. Throws IoError, IntegrityError,
  // DeviceError, TimeoutError.
  void visit(std::span<const StateKind> kinds, std::int32_t unit, std::uint64_t begin,
             std::uint64_t end, Access access, const Visitor& visitor);

 private:
  const schedule::Buffer* home(StateKind kind, std::int32_t unit) const;
  void move(const schedule::Buffer& home, std::uint64_t begin, std::uint64_t end, std::byte* window,
            Access access);

  RunMemory& memory_;
  DurableState* durable_;
  std::unique_ptr<device::Stream> stream_;
  std::uint64_t window_offset_;  // in pinned memory
  using Homes = std::vector<std::array<const schedule::Buffer*, kStateKindCount>>;  // by unit
  Homes homes_;
  Homes shadows_;  // the homes where they have none
  bool flipped_ = false;
};

}  // namespace sluice::runtime
