// What a stream shares with the events that were recorded on it: the driver's stream, the failure
// that the stream keeps, and how much of its copies has completed.
//
// Copies are counted without a word to the GPU: the stream remembers what it has queued, and who
// finds a later point of it reached (an event, or the whole queue empty) knows that all up to there
// has completed. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "base/mutex.hpp"
#include "device/cuda/cuda_runtime.hpp"

namespace sluice::device {

using CopiedBytes = std::array<std::uint64_t, kCopyKindCount>;

class CudaQueue {
 public:
  // Throws DeviceError.
  CudaQueue(std::shared_ptr<CudaRuntime> runtime, std::string name);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  const std::string& name() const { return name_; }
  CUstream handle() const { return handle_; }
  CudaRuntime& runtime() const { return *runtime_; }

  // The first failure stays.
  void keep_error(std::exception_ptr error) noexcept;
  std::exception_ptr error() const;

  void add_queued(CopyKind kind, std::uint64_t bytes);
  CopiedBytes queued() const;
  // All that was queued up to this snapshot has completed.
  void complete(const CopiedBytes& queued) noexcept;

  // One look, which completes what it finds completed: true if nothing queued is left, or the
  // driver reports a failure, which is kept. The context is current.
  bool look_idle() noexcept;

 private:
  const std::shared_ptr<CudaRuntime> runtime_;
  const std::string name_;
  CUstream handle_ = nullptr;
  mutable Mutex mutex_;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  CopiedBytes queued_ SLUICE_GUARDED_BY(mutex_){};
  CopiedBytes completed_ SLUICE_GUARDED_BY(mutex_){};
};

}  // namespace sluice::device
