// Runs the storage_read or the storage_write lane of a pass.
//
// The lane's thread submits transfers to the storage engine as soon as their dependencies allow,
// and keeps several in flight. They end in any order; other lanes see them end in lane order, as a
// schedule promises. The lane is done when nothing is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/run_state.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::runtime {

class StorageLane {
 public:
  // durable: of a durable run, else null. deadline_seconds: for the transfers that are in flight
  // when the lane has submitted its last.
  StorageLane(schedule::Lane lane, device::Device& device, offload::TaggedSpace& storage,
              DurableState* durable, double deadline_seconds);

  // Returns when the lane's last transfer has ended, also after a failure: the memory of a transfer
  // in flight is not free. Throws the failure of its own thread; a transfer's goes to pass.fail().
  void run(Pass& pass) SLUICE_EXCLUDES(mutex_);

 private:
  void submit_all(Pass& pass);
  void submit(Pass& pass, const schedule::Instruction& transfer, std::size_t at)
      SLUICE_EXCLUDES(mutex_);
  void commit(Pass& pass, const schedule::Instruction& instruction);
  // The instruction at this position of the lane has ended: publishes the longest finished prefix.
  void end(Pass& pass, std::size_t at) SLUICE_EXCLUDES(mutex_);
  void await_idle(Pass& pass) SLUICE_EXCLUDES(mutex_);

  const schedule::Lane lane_;
  device::Device& device_;
  offload::TaggedSpace& storage_;
  DurableState* const durable_;
  const double deadline_seconds_;

  Mutex mutex_;
  CondVar drained_;
  std::vector<std::uint8_t> ended_ SLUICE_GUARDED_BY(mutex_);  // by position in the lane
  std::size_t published_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::size_t in_flight_count_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::runtime
