// The state behind the simulated driver's functions: one GPU or several, their primary contexts,
// and every handle that is alive.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cuda_driver/simulated_gpu.hpp"
#include "tests/support/cuda_driver/simulator_control.hpp"

namespace sluice::simulated {

struct Gpu {
  Gpu(std::uint64_t capacity_bytes, bool guarded) : memory(capacity_bytes, guarded) {}
  Memory memory;
  int retained = 0;  // of the primary context
};

struct Stream {
  Gpu* gpu;
  std::unique_ptr<Queue> queue;
};

struct Event {
  bool timed = true;
  std::shared_ptr<Point> point;  // null: never recorded
};

class Driver {
 public:
  static Driver& instance();

  // Every function begins here. Not CUDA_SUCCESS: it returns that at once, or, if it releases
  // something, once it has done so.
  CUresult enter(const char* function);
  // Enters a function that needs a current context.
  CUresult enter_context(const char* function, Gpu*& gpu);

  std::mutex mutex;  // guards all below
  bool initialized = false;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::map<CUstream, Stream> streams;
  std::map<CUevent, Event> events;
  std::map<std::uintptr_t, std::uint64_t> registered;
  std::vector<std::unique_ptr<Queue>> closing;  // destroyed streams that still work
  std::uint64_t next_handle = 1;

  // Injected failures.
  std::string failing;  // empty: any function
  std::int64_t remaining = -1;
  CUresult failure = CUDA_SUCCESS;
  bool forever = false;
  std::uint64_t calls = 0;

  // These hold the mutex. The default stream (null) is made at its first use, on the current GPU.
  Stream* find(CUstream stream);
  Event* find(CUevent event);
  void close_default_stream();
  void reap();
  // Once no context is held: joins the threads of all destroyed streams, so that none is left when
  // the process ends. A thread that has not ended within a second (its wait never ends) stays.
  void reap_all(std::unique_lock<std::mutex>& lock);

 private:
  Driver();
};

// The GPU with its primary context current on this thread, or null.
Gpu* current_gpu();

// body(driver, gpu) as the driver's function `name`: not called where a
// failure is injected or no context is current. The mutex is not held.
template <class Body>
CUresult call(const char* name, const Body& body) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context(name, gpu);
  return status == CUDA_SUCCESS ? body(Driver::instance(), *gpu) : status;
}
// Runs the body with the mutex held.
template <class Body>
CUresult call_locked(const char* name, const Body& body) {
  return call(name, [&](Driver& driver, Gpu& gpu) {
    const std::lock_guard lock(driver.mutex);
    return body(driver, gpu);
  });
}
// A function that releases something: it does so, and then reports the injected failure.
template <class Body>
CUresult release(const char* name, const Body& body) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context(name, gpu);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult released = body(Driver::instance(), *gpu);
  return released == CUDA_SUCCESS ? status : released;
}

}  // namespace sluice::simulated
