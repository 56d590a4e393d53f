#include "device/cuda/cuda_clock.hpp"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "device/cuda/poll_pause.hpp"

namespace sluice::device {
namespace {

constexpr std::int64_t kAnchorAgeNs = 10'000'000'000;
constexpr std::int64_t kRetryNs = 1'000'000'000;  // after an anchor that was not reached in time
constexpr std::int64_t kFirstLimitNs = 30'000'000'000;
// The longest time that recording an event may spend on a fresh anchor.
constexpr std::int64_t kRefreshLimitNs = 300'000;
constexpr std::int64_t kGoodRoundTripNs = 50'000;
constexpr int kRounds = 8;

}  // namespace

CudaClock::Anchor::Anchor(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)) {
  const CudaDriver& driver = context_->driver();
  driver.check(driver.cuEventCreate(&event_, CU_EVENT_DEFAULT), "creating an event");
}

CudaClock::Anchor::~Anchor() {
  release_in_context(*context_, "destroying an event",
                     [this](const CudaDriver& driver) { return driver.cuEventDestroy(event_); });
}

CudaClock::CudaClock(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {
  const CurrentContext current(*context_);
  const CudaDriver& driver = context_->driver();
  auto first = std::make_shared<Anchor>(context_);
  driver.check(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "creating a stream");
  try {
    for (int round = 0; round < kRounds; ++round) {
      const std::int64_t round_trip_ns = measure(*first, kFirstLimitNs);
      if (round_trip_ns < 0) throw TimeoutError("the first event of a GPU");
      if (round_trip_ns <= kGoodRoundTripNs) break;
    }
  } catch (...) {
    context_->warn_unless_success(driver.cuStreamDestroy(stream_), "destroying a stream");
    throw;
  }
  next_ns_ = now_ns() + kAnchorAgeNs;
  current_ = std::move(first);
}

CudaClock::~CudaClock() {
  release_in_context(*context_, "destroying a stream",
                     [this](const CudaDriver& driver) { return driver.cuStreamDestroy(stream_); });
}

std::int64_t CudaClock::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t CudaClock::measure(Anchor& anchor, std::int64_t limit_ns) {
  const CudaDriver& driver = context_->driver();
  const std::int64_t before_ns = now_ns();
  driver.check(driver.cuEventRecord(anchor.event_, stream_), "recording an event");
  PollPause pause;
  for (;;) {
    const CUresult status = driver.cuEventQuery(anchor.event_);
    const std::int64_t after_ns = now_ns();
    if (status == CUDA_SUCCESS) {
      anchor.host_ns_ = before_ns + (after_ns - before_ns) / 2;
      return after_ns - before_ns;
    }
    if (status != CUDA_ERROR_NOT_READY) driver.fail(status, "waiting for an event");
    if (after_ns - before_ns > limit_ns) return -1;
    pause.pause();
  }
}

std::shared_ptr<const CudaClock::Anchor> CudaClock::anchor() noexcept {
  const MutexLock lock(mutex_);
  const std::int64_t now = now_ns();
  if (now < next_ns_) return current_;
  next_ns_ = now + kRetryNs;
  try {
    auto fresh = std::make_shared<Anchor>(context_);
    if (measure(*fresh, kRefreshLimitNs) >= 0) {
      current_ = std::move(fresh);
      next_ns_ = now + kAnchorAgeNs;
    }
  } catch (...) {  // the next use of the GPU meets the same failure and reports it
  }
  return current_;
}

std::int64_t CudaClock::time_ns(const Anchor& anchor, CUevent event) const {
  const CudaDriver& driver = context_->driver();
  float milliseconds = 0;
  driver.check(driver.event_elapsed_time(&milliseconds, anchor.event_, event),
               "measuring between two events");
  return anchor.host_ns_ + std::llround(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace sluice::device
