// The state that a stream shares with its events: the driver's stream, the stream's error, and the
// bytes of its completed copies.
//
// Completed copies are counted without extra calls to the GPU. The stream counts the bytes that it
// queues, and an event keeps that count when it is recorded. If the event is found reached, or the
// queue is found empty, all bytes up to that count have completed.
//
// Invariants:
//   1. The first error stays; later ones are dropped.
//   2. queued_ and completed_ never decrease, by copy kind. A snapshot seen late, after a newer
//      one, changes nothing.
//   3. The device's totals grow by exactly the growth of completed_, so no copy counts twice.
// Thread-safe.
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
  // Over a stream of the host program, which stays the program's.
  CudaQueue(std::shared_ptr<CudaRuntime> runtime, std::string name, CUstream borrowed);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  const std::string& name() const { return name_; }
  CUstream handle() const { return handle_; }
  CudaRuntime& runtime() const { return *runtime_; }

  // Keeps the error unless there is one already.
  void keep_error(std::exception_ptr error) noexcept;
  std::exception_ptr error() const;

  void add_queued(CopyKind kind, std::uint64_t bytes);
  CopiedBytes queued() const;
  // Call when all copies up to this snapshot of queued() have completed.
  void complete(const CopiedBytes& queued) noexcept;

  // Queries the driver's stream once. Returns true if nothing queued is left; all copies then count
  // as completed. Also returns true if the driver reports a failure, which is kept. The context
  // must be current.
  bool look_idle() noexcept;

 private:
  const std::shared_ptr<CudaRuntime> runtime_;
  const std::string name_;
  CUstream handle_ = nullptr;
  const bool is_borrowed_;
  mutable Mutex mutex_;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  CopiedBytes queued_ SLUICE_GUARDED_BY(mutex_){};
  CopiedBytes completed_ SLUICE_GUARDED_BY(mutex_){};
};

}  // namespace sluice::device
