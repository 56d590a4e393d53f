// Converts the time of a GPU event to the host's steady clock.
//
// The driver reports the time between two events as a float of milliseconds. So each event is
// measured from an anchor recorded at most some ten seconds before it; at that distance a float
// resolves a microsecond. The anchor's own time on the host is known to within the round trip
// of its recording.
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

  // Throws DeviceError; TimeoutError if the GPU does not answer.
  explicit CudaClock(std::shared_ptr<const CudaContext> context);
  ~CudaClock();
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  static std::int64_t now_ns();  // the host's steady clock

  // The anchor for an event that is recorded now. Thread-safe; the context must be current. Never
  // throws: if a fresh anchor is not available at once, it returns an older one.
  std::shared_ptr<const Anchor> anchor() noexcept;
  // The host time of an event that was reached. The context must be current. Throws DeviceError.
  std::int64_t time_ns(const Anchor& anchor, CUevent event) const;

 private:
  // Records the anchor and waits until it is reached. Returns the round trip, or a negative number
  // if the anchor was not reached in time.
  std::int64_t measure(Anchor& anchor, std::int64_t limit_ns);

  const std::shared_ptr<const CudaContext> context_;
  CUstream stream_ = nullptr;
  Mutex mutex_;
  std::shared_ptr<const Anchor> current_ SLUICE_GUARDED_BY(mutex_);  // never null
  std::int64_t next_ns_ SLUICE_GUARDED_BY(mutex_) = 0;               // when a fresh one is due
};

}  // namespace sluice::device
