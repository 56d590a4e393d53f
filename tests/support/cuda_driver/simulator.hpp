// The simulated driver as a test sees it: the library that a CudaDevice finds, and its knobs.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "tests/support/cuda_driver/simulator_control.hpp"

namespace sluice::testing {

class CudaSimulator {
 public:
  // Throws where the driver found is not the simulated one: such a test must not pass by chance.
  CudaSimulator()
      : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)),
        objects_(find<decltype(objects_)>("sluice_simulator_objects")),
        fail_(find<decltype(fail_)>("sluice_simulator_fail")),
        calls_(find<decltype(calls_)>("sluice_simulator_calls")),
        fault_(find<decltype(fault_)>("sluice_simulator_fault")) {
    heal();
  }
  ~CudaSimulator() { heal(); }
  CudaSimulator(const CudaSimulator&) = delete;
  CudaSimulator& operator=(const CudaSimulator&) = delete;

  SluiceSimulatedObjects objects() const {
    SluiceSimulatedObjects objects;
    objects_(&objects);
    return objects;
  }
  std::uint64_t object_count() const {
    const SluiceSimulatedObjects all = objects();
    return all.contexts + all.streams + all.events + all.blocks + all.mappings + all.ranges +
           all.buffers + all.registrations;
  }
  // As sluice_simulator_fail().
  void fail(const char* function, std::int64_t call, int status, bool forever = false) {
    fail_(function, call, status, forever ? 1 : 0);
  }
  std::uint64_t calls() const { return calls_(); }
  void fault(int status) { fault_(status); }
  void heal() {
    fault_(0);
    fail_(nullptr, -1, 0, 0);
  }

 private:
  template <typename Function>
  Function find(const char* name) {
    void* const symbol = library_ != nullptr ? ::dlsym(library_, name) : nullptr;
    if (symbol == nullptr) {
      throw std::runtime_error(std::string("libcuda.so.1 is not the simulated one: no ") + name +
                               "; is LD_LIBRARY_PATH set as ctest sets it?");
    }
    return reinterpret_cast<Function>(symbol);
  }

  void* const library_;
  void (*const objects_)(SluiceSimulatedObjects*);
  void (*const fail_)(const char*, std::int64_t, int, int);
  std::uint64_t (*const calls_)();
  void (*const fault_)(int);
};

}  // namespace sluice::testing
