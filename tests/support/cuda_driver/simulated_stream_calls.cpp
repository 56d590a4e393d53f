// The simulated driver's functions for streams, events and copies.
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/support/cuda_driver/simulated_driver.hpp"

using sluice::simulated::call;
using sluice::simulated::call_locked;
using sluice::simulated::Driver;
using sluice::simulated::Event;
using sluice::simulated::Gpu;
using sluice::simulated::Point;
using sluice::simulated::Queue;
using sluice::simulated::release;
using sluice::simulated::Stream;

namespace {

enum class HostPages { kPinned, kPageable, kPartlyPinned };

HostPages pages_of(Driver& driver, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(driver.mutex);
  const auto next = driver.registered.upper_bound(begin);
  if (next != driver.registered.begin()) {
    const auto& [first, size] = *std::prev(next);
    if (begin < first + size) {
      return begin + bytes <= first + size ? HostPages::kPinned : HostPages::kPartlyPinned;
    }
  }
  const bool reaches = next != driver.registered.end() && next->first < begin + bytes;
  return reaches ? HostPages::kPartlyPinned : HostPages::kPageable;
}

// Queues work; the point that it returns is reached once the work is done.
CUresult push(Driver& driver, CUstream handle, bool touches_memory, std::function<void()> work,
              std::shared_ptr<Point>* done = nullptr) {
  const std::lock_guard lock(driver.mutex);
  Stream* const stream = driver.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->queue->push(std::move(work), touches_memory);
  if (done != nullptr) {
    *done = std::make_shared<Point>();
    stream->queue->push([point = *done] { point->reach(); }, false);
  }
  return CUDA_SUCCESS;
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  return call_locked("cuStreamCreate", [&](Driver& driver, Gpu& gpu) {
    driver.reap();
    *stream = reinterpret_cast<CUstream>(driver.next_handle++ << 4);
    driver.streams.emplace(*stream, Stream{&gpu, std::make_unique<Queue>(gpu.memory)});
    return CUDA_SUCCESS;
  });
}

// Returns at once: queued work still runs.
CUresult cuStreamDestroy_v2(CUstream handle) {
  return release("cuStreamDestroy", [&](Driver& driver, Gpu&) {
    const std::lock_guard lock(driver.mutex);
    Stream* const stream = handle == nullptr ? nullptr : driver.find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    stream->queue->close();
    driver.closing.push_back(std::move(stream->queue));
    driver.streams.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return call_locked("cuStreamQuery", [&](Driver& driver, Gpu&) {
    Stream* const stream = driver.find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return stream->queue->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call("cuStreamSynchronize", [&](Driver& driver, Gpu&) {
    std::shared_ptr<Point> done;
    const CUresult pushed = push(
        driver, handle, false, [] {}, &done);
    if (pushed != CUDA_SUCCESS) return pushed;
    done->wait();
    return sluice::simulated::fault();
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  return call_locked("cuStreamWaitEvent", [&](Driver& driver, Gpu&) {
    Stream* const stream = driver.find(handle);
    Event* const awaited = driver.find(event);
    if (stream == nullptr || awaited == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    // The point that the event holds now; later records do not change it.
    if (awaited->point) stream->queue->push([point = awaited->point] { point->wait(); }, false);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return call_locked("cuEventCreate", [&](Driver& driver, Gpu&) {
    *event = reinterpret_cast<CUevent>(driver.next_handle++ << 4);
    driver.events.emplace(*event, Event{(flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr});
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  return release("cuEventDestroy", [&](Driver& driver, Gpu&) {
    const std::lock_guard lock(driver.mutex);
    return driver.events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  return call_locked("cuEventRecord", [&](Driver& driver, Gpu&) {
    Stream* const stream = driver.find(handle);
    Event* const recorded = driver.find(event);
    if (stream == nullptr || recorded == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    recorded->point = std::make_shared<Point>();
    stream->queue->push([point = recorded->point] { point->reach(); }, false);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent event) {
  return call_locked("cuEventQuery", [&](Driver& driver, Gpu&) {
    const Event* const asked = driver.find(event);
    if (asked == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return !asked->point || asked->point->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

// Sluice asks for the name without a version.
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call_locked("cuEventElapsedTime", [&](Driver& driver, Gpu&) {
    const Event* const first = driver.find(start);
    const Event* const last = driver.find(end);
    if (first == nullptr || last == nullptr || !first->timed || !last->timed || !first->point ||
        !last->point) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!first->point->reached() || !last->point->reached()) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(last->point->milliseconds() - first->point->milliseconds());
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return call("cuLaunchHostFunc", [&](Driver& driver, Gpu&) {
    return push(driver, handle, true, [function, data] { function(data); });
  });
}

CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, std::size_t bytes,
                         CUstream handle) {
  return call("cuMemsetD8Async", [&](Driver& driver, Gpu& gpu) {
    if (!gpu.memory.accessible(destination, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return push(driver, handle, true, [=] { std::memset(pointer(destination), value, bytes); });
  });
}

// From pageable memory the bytes are staged before the call returns.
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, std::size_t bytes,
                              CUstream handle) {
  return call("cuMemcpyHtoDAsync", [&](Driver& driver, Gpu& gpu) {
    const HostPages pages = pages_of(driver, source, bytes);
    if (!gpu.memory.accessible(destination, bytes) || pages == HostPages::kPartlyPinned) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (pages == HostPages::kPinned) {
      return push(driver, handle, true, [=] { std::memcpy(pointer(destination), source, bytes); });
    }
    const auto* const first = static_cast<const std::byte*>(source);
    return push(driver, handle, true,
                [destination, staged = std::vector<std::byte>(first, first + bytes)] {
                  std::memcpy(pointer(destination), staged.data(), staged.size());
                });
  });
}

// Into pageable memory the call returns when the bytes are there.
CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, std::size_t bytes,
                              CUstream handle) {
  return call("cuMemcpyDtoHAsync", [&](Driver& driver, Gpu& gpu) {
    const HostPages pages = pages_of(driver, destination, bytes);
    if (!gpu.memory.accessible(source, bytes) || pages == HostPages::kPartlyPinned) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Point> done;
    const CUresult pushed = push(
        driver, handle, true, [=] { std::memcpy(destination, pointer(source), bytes); }, &done);
    if (pushed == CUDA_SUCCESS && pages == HostPages::kPageable) done->wait();
    return pushed;
  });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, std::size_t bytes,
                              CUstream handle) {
  return call("cuMemcpyDtoDAsync", [&](Driver& driver, Gpu& gpu) {
    if (!gpu.memory.accessible(destination, bytes) || !gpu.memory.accessible(source, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return push(driver, handle, true,
                [=] { std::memcpy(pointer(destination), pointer(source), bytes); });
  });
}
}
