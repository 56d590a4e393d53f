// When an event of the GPU was reached, on the host's steady clock.
//
// The driver tells the time between two events in milliseconds of single precision, so an event is
// measured against an anchor that was recorded shortly before it: at most some ten seconds, where a
// float resolves a microsecond. An anchor's own time is known to within the round trip of its
// recording.
#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.hpp"
#include "device/cuda/cuda_context.hpp"

namespace sluice::device {

class CudaClock {
 public:
  class Anchor {
   public:
    explicit Anchor(std::shared_ptr<const CudaContext> context);  // throws DeviceError
    ~Anchor();
    Anchor(const Anchor&) = delete;
    Anchor& operator=(const Anchor&) = delete;

   private:
    friend class CudaClock;
    const std::shared_ptr<const CudaContext> context_;
    CUevent event_ = nullptr;
    std::int64_t host_ns_ = 0;
  };

  // Throws DeviceError, TimeoutError where the GPU does not answer.
  explicit CudaClock(std::shared_ptr<const CudaContext> context);
  ~CudaClock();
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  static std::int64_t now_ns();  // the host's steady clock

  // For an event that is recorded now. Thread-safe; the context is current. Never throws: where a
  // fresh anchor cannot be had at once, an older one serves.
  std::shared_ptr<const Anchor> anchor() noexcept;
  // Of an event that was reached; the context is current. Throws DeviceError.
  std::int64_t time_ns(const Anchor& anchor, CUevent event) const;

 private:
  // Records the anchor and waits until it is reached. Returns the round trip; negative: not
  // reached in time.
  std::int64_t measure(Anchor& anchor, std::int64_t limit_ns);

  const std::shared_ptr<const CudaContext> context_;
  CUstream stream_ = nullptr;
  Mutex mutex_;
  std::shared_ptr<const Anchor> current_ SLUICE_GUARDED_BY(mutex_);  // never null
  std::int64_t next_ns_ SLUICE_GUARDED_BY(mutex_) = 0;               // when a fresh one is due
};

}  // namespace sluice::device
