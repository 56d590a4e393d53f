// The simulated GPU: memory that a driver allocates, and streams that run on threads.
//
// Device addresses are addresses of this process, so that kernels compiled for the CPU can work on
// them. With SLUICE_SIMULATED_GPU_GUARD=1 device memory can be touched only while a stream is at
// work: host code that takes a device pointer for its own faults there, as it would with a GPU.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/cuda_driver/simulator_control.hpp"

namespace sluice::simulated {

// Memory of one GPU. Thread-safe.
class Memory {
 public:
  static constexpr std::uint64_t kGranularity = 2 << 20;

  explicit Memory(std::uint64_t capacity_bytes, bool guarded);

  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  std::uint64_t free_bytes() const;

  CUresult allocate(CUdeviceptr* data, std::uint64_t bytes);
  CUresult free(CUdeviceptr data);
  CUresult reserve(CUdeviceptr* base, std::uint64_t bytes, std::uint64_t alignment);
  CUresult free_range(CUdeviceptr base, std::uint64_t bytes);
  CUresult create(std::uint64_t* handle, std::uint64_t bytes);
  CUresult release(std::uint64_t handle);
  CUresult map(CUdeviceptr at, std::uint64_t bytes, std::uint64_t offset, std::uint64_t handle);
  CUresult unmap(CUdeviceptr at, std::uint64_t bytes);
  CUresult set_access(CUdeviceptr at, std::uint64_t bytes);

  // All of it is memory that the GPU may touch.
  bool accessible(CUdeviceptr at, std::uint64_t bytes) const;

  // Streams at work may touch device memory between these; nests.
  void open();
  void close();

  void add_to(SluiceSimulatedObjects& objects) const;

 private:
  struct Block {
    std::uint64_t file_offset, bytes;
    std::uint32_t mapping_count;
    bool released;
  };
  struct Mapping {
    std::uint64_t bytes, handle;
    bool accessible;
  };
  std::map<CUdeviceptr, std::uint64_t>::iterator range_of(CUdeviceptr at, std::uint64_t bytes);
  // One or several mappings side by side, no part of one.
  bool covers_whole_mappings(CUdeviceptr at, std::uint64_t bytes) const;
  void forget_if_unused(std::uint64_t handle);
  bool place(CUdeviceptr at, const Mapping& mapping) const;
  void protect_all(int protection) const;

  const std::uint64_t capacity_bytes_;
  const bool guarded_;
  int file_ = -1;
  mutable std::mutex mutex_;  // guards all below
  std::uint64_t used_bytes_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t next_handle_ = 1;
  int open_count_ = 0;
  std::map<std::uint64_t, Block> blocks_;
  std::map<CUdeviceptr, Mapping> mappings_;
  std::map<CUdeviceptr, std::uint64_t> ranges_;
  std::map<CUdeviceptr, std::uint64_t> buffers_;
};

// A place in a stream.
class Point {
 public:
  void reach();
  bool reached() const;
  void wait() const;
  double milliseconds() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  double milliseconds_ = 0;
};

// An in-order queue with a worker thread.
class Queue {
 public:
  explicit Queue(Memory& memory);
  ~Queue();  // drains

  // A work that raises a fault has `fault` set for all that follows, on every stream.
  void push(std::function<void()> work, bool touches_memory);
  bool idle() const;
  void wait_idle() const;
  // Queued work will still run; the worker then ends by itself.
  void close();
  bool ended() const;

 private:
  struct Entry {
    std::function<void()> work;
    bool touches_memory;
  };
  void run();

  Memory& memory_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Entry> entries_;  // guarded by mutex_, as all below
  bool working_ = false;
  bool closing_ = false;
  bool ended_ = false;
  std::jthread worker_;  // last
};

// Work queued from now on is skipped, points are still reached.
void set_fault(CUresult status);
CUresult fault();

// This thread runs a stream's work: it may not call the driver.
bool on_worker_thread();

}  // namespace sluice::simulated
