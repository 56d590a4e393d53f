#include "device/cuda/cuda_stream.hpp"

#include <utility>

#include "base/log.hpp"
#include "device/cuda/poll_pause.hpp"

namespace sluice::device {
namespace {

CUdeviceptr as_device(const void* data) {
  return reinterpret_cast<CUdeviceptr>(data);
}

bool disjoint(const void* a, const void* b, std::uint64_t bytes) {
  const CUdeviceptr first = as_device(a);
  const CUdeviceptr second = as_device(b);
  return first + bytes <= second || second + bytes <= first;
}

template <typename Ours, typename Theirs>
Ours& of_cuda(Theirs& event) {
  auto* const ours = dynamic_cast<Ours*>(&event);
  SLUICE_CHECK_MSG(ours != nullptr, "streams use events of their own device");
  return *ours;
}

}  // namespace

CudaStream::~CudaStream() {
  try {
    const CurrentContext current(*queue_->runtime().context);
    if (!drain(Deadline::after_seconds(kDefaultDeadlineSeconds))) {
      log(LogLevel::kWarning,
          "cuda: stream '" + queue_->name() + "' did not finish in time and is abandoned");
    }
  } catch (...) {  // without a context there is no work; waiters have seen the GPU's failure
  }
}

bool CudaStream::drain(Deadline deadline) noexcept {
  PollPause pause;
  while (!queue_->look_idle()) {
    if (deadline.passed()) return false;
    pause.pause();
  }
  return true;
}

void CudaStream::launch(std::function<void()> work, std::span<const MemoryAccess>) {
  SLUICE_CHECK_MSG(work != nullptr, "launched work is not empty");
  if (queue_->error()) return;
  try {
    const CurrentContext current(*queue_->runtime().context);
    work();
  } catch (...) {
    queue_->keep_error(std::current_exception());
  }
}

void CudaStream::copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) {
  if (bytes == 0) return;
  SLUICE_CHECK_MSG(destination != nullptr && source != nullptr, "a copy has two ends");
  SLUICE_CHECK_MSG(disjoint(destination, source, bytes), "the ends of a copy must not overlap");
  if (queue_->error()) return;
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  try {
    const CurrentContext current(*queue_->runtime().context);
    for (std::uint64_t at = 0; at < bytes;) {
      std::uint64_t piece_bytes = bytes - at;
      if (kind != CopyKind::kDeviceToDevice) {
        const void* const host = kind == CopyKind::kHostToDevice ? from + at : to + at;
        piece_bytes = queue_->runtime().registrations.bytes_to_border(host, piece_bytes);
      }
      copy_piece(to + at, from + at, piece_bytes, kind);
      queue_->add_queued(kind, piece_bytes);
      at += piece_bytes;
    }
  } catch (...) {
    queue_->keep_error(std::current_exception());
  }
}

void CudaStream::copy_piece(std::byte* destination, const std::byte* source, std::uint64_t bytes,
                            CopyKind kind) {
  const CudaDriver& driver = queue_->runtime().driver();
  const CUstream stream = queue_->handle();
  switch (kind) {
    case CopyKind::kHostToDevice:
      driver.check(driver.cuMemcpyHtoDAsync(as_device(destination), source, bytes, stream),
                   "a copy from host to device");
      break;
    case CopyKind::kDeviceToHost:
      driver.check(driver.cuMemcpyDtoHAsync(destination, as_device(source), bytes, stream),
                   "a copy from device to host");
      break;
    case CopyKind::kDeviceToDevice:
      driver.check(
          driver.cuMemcpyDtoDAsync(as_device(destination), as_device(source), bytes, stream),
          "a copy within the device");
      break;
  }
}

void CudaStream::record(Event& event) {
  auto& ours = of_cuda<CudaEvent>(event);
  const CurrentContext current(*queue_->runtime().context);
  ours.record_on(queue_);
}

void CudaStream::wait(const Event& event) {
  const auto& ours = of_cuda<const CudaEvent>(event);
  const CurrentContext current(*queue_->runtime().context);
  ours.hold_back(*queue_);
}

void CudaStream::synchronize(Deadline deadline) {
  const CurrentContext current(*queue_->runtime().context);
  if (!drain(deadline)) {
    throw TimeoutError("stream '" + queue_->name() + "' to finish its queued entries");
  }
  if (const std::exception_ptr error = queue_->error()) std::rethrow_exception(error);
}

}  // namespace sluice::device
