#include "device/cuda/host_registrations.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"

namespace sluice::device {
namespace {

std::uintptr_t as_number(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

HostRegistrations::HostRegistrations(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)) {}

HostRegistrations::~HostRegistrations() {
  for (const auto& registration : registered_) {
    auto* const data = reinterpret_cast<void*>(registration.first);
    release_in_context(*context_, "unregistering host memory",
                       [&](const CudaDriver& driver) { return driver.cuMemHostUnregister(data); });
  }
}

void HostRegistrations::add(void* data, std::uint64_t bytes) {
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  SLUICE_CHECK_MSG(data != nullptr && bytes > 0, "registered host memory is not empty");
  SLUICE_CHECK_MSG(as_number(data) % page_bytes == 0,
                   "registered host memory starts at a page boundary");
  const std::uintptr_t begin = as_number(data);
  {
    const MutexLock lock(mutex_);
    const auto next = registered_.lower_bound(begin);
    SLUICE_CHECK_MSG(next == registered_.end() || next->first >= begin + bytes,
                     "host memory is registered once");
    SLUICE_CHECK_MSG(
        next == registered_.begin() || std::prev(next)->first + std::prev(next)->second <= begin,
        "host memory is registered once");
    registered_.emplace(begin, bytes);
  }
  // Outside the lock: pinning some GiB takes a second, and copies look up borders meanwhile.
  try {
    const CurrentContext current(*context_);
    context_->driver().check(
        context_->driver().cuMemHostRegister(
            data, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "registering host memory");
  } catch (...) {
    const MutexLock lock(mutex_);
    registered_.erase(begin);
    throw;
  }
  const MutexLock lock(mutex_);
  ++calls_;
  bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

void HostRegistrations::remove(void* data) noexcept {
  release_in_context(*context_, "unregistering host memory",
                     [&](const CudaDriver& driver) { return driver.cuMemHostUnregister(data); });
  const MutexLock lock(mutex_);
  const auto entry = registered_.find(as_number(data));
  if (entry == registered_.end()) return;
  bytes_ -= entry->second;
  registered_.erase(entry);
}

std::uint64_t HostRegistrations::bytes_to_border(const void* data, std::uint64_t bytes) const {
  const std::uintptr_t at = as_number(data);
  const MutexLock lock(mutex_);
  const auto next = registered_.upper_bound(at);
  std::uint64_t border = next == registered_.end() ? bytes : next->first - at;
  if (next != registered_.begin()) {
    const auto& [begin, length] = *std::prev(next);
    if (at < begin + length) border = begin + length - at;
  }
  return std::min(border, bytes);
}

std::uint64_t HostRegistrations::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

std::uint64_t HostRegistrations::peak_bytes() const {
  const MutexLock lock(mutex_);
  return peak_bytes_;
}

}  // namespace sluice::device
