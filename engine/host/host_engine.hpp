// The resources of a host program that embeds Sluice: one device, the ledger with its budgets, and
// the storage directories. The parts that work on them (allocators, sessions) share it and keep it
// alive. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/ledger.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "engine/host/trace_log.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::host {

// This build does not have it.
class Unsupported : public Error {
 public:
  using Error::Error;
};
// A fixed limit of the library is reached; the message names it.
class LimitReached : public Error {
 public:
  using Error::Error;
};

// Puts something around the storage engine of a session or a pager: faults, in tests.
using StorageWrapper =
    std::function<std::unique_ptr<offload::StorageEngine>(std::unique_ptr<offload::StorageEngine>)>;

struct EngineOptions;
// Makes a device in place of the one that the options name: one that is watched, in tests.
using DeviceMaker = std::function<std::unique_ptr<device::Device>(const EngineOptions&)>;

struct EngineOptions {
  bool cuda = false;  // else the host device
  int device_id = 0;
  // 0: nine tenths of what is free now.
  std::uint64_t device_bytes = 0, pinned_bytes = 0, storage_bytes = 0;
  std::vector<std::string> storage_paths;  // empty: no storage
  std::string storage_engine = "auto";     // offload::make_storage_engine()
  int threads = 0;                         // 0: all cores of this process
  double deadline_s = kDefaultDeadlineSeconds;
  double link_bandwidth_bytes_per_s = 0;  // of the host device
  StorageWrapper wrap_storage;            // empty: nothing is around it
  DeviceMaker make_device;                // empty: the device of these options
};

class HostEngine {
 public:
  // Throws InputError (a device or a directory that does not exist) and DeviceError.
  explicit HostEngine(const EngineOptions& options);

  // With the budgets as numbers.
  const EngineOptions& options() const { return options_; }
  device::Device& device() { return *device_; }
  allocator::Ledger& ledger() { return ledger_; }
  const allocator::Ledger& ledger() const { return ledger_; }
  // The bytes of each budget that nothing holds.
  std::array<std::uint64_t, kTierCount> bytes_left() const;
  // A storage engine as the options say. Throws InputError.
  std::unique_ptr<offload::StorageEngine> make_storage() const;
  // The log of this engine's sessions and of the program.
  TraceLog& trace() { return trace_; }
  // Replaces the file as a whole. Throws IoError.
  void write_trace(const std::string& path) const;

 private:
  const EngineOptions options_;
  const std::unique_ptr<device::Device> device_;
  allocator::Ledger ledger_;
  TraceLog trace_;
};

}  // namespace sluice::host
