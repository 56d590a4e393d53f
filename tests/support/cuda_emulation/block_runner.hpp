// Runs CUDA kernels on the calling OS thread: block after block, each CUDA thread a context of its
// own that gives way where it waits for others.
//
// A thread runs until it meets a barrier or a warp-wide call; one that never does shares its
// context with the threads after it, so that plain kernels cost no switches. Threads begin in
// ascending order in even blocks and in descending order in odd ones: results that depend on the
// order differ between them.
//
// Errors, thrown by run() as DeviceError: threads that wait for others that have ended or wait
// elsewhere (a divergent barrier; a GPU might hang), warp-wide calls in a warp of less than 32
// lanes or with part of a mask, and whatever a thread itself throws. The threads of that block are
// dropped where they stand.
#pragma once

#include <vector_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/context.hpp"

namespace sluice::emulation {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

inline constexpr int kWarpLanes = 32;
inline constexpr std::size_t kExchangeBytes = 64;  // the most that a lane may hand to its warp
// The limit of sm_90 (sm_80: 163 KiB, sm_120: 99 KiB).
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;

// The values that each lane of a warp handed in.
using WarpValues = std::array<std::array<std::byte, kExchangeBytes>, kWarpLanes>;

// A cp.async that has not been waited for.
struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;   // of `from`
  std::size_t zeroes = 0;  // after them
  int group = 0;
};

class BlockRunner {
 public:
  // The runner of the calling OS thread.
  static BlockRunner& current();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // kernel() is the body of one CUDA thread.
  void run(const LaunchShape& shape, const std::function<void()>& kernel);

  // The calls of the running CUDA thread.
  void barrier(const std::source_location& where);
  // Returns once all 32 lanes of the warp have handed in their value; the reference is valid until
  // the lane's next exchange but one.
  const WarpValues& exchange(unsigned mask, const void* value, std::size_t bytes,
                             const std::source_location& where);
  std::byte* dynamic_shared();
  std::size_t dynamic_shared_bytes() const { return shared_bytes_; }
  int lane() const;
  std::vector<PendingCopy>& pending_copies();
  int& copy_group();

 private:
  struct Fiber;
  struct Warp;

  BlockRunner();
  static void fiber_main(void* argument);
  void run_block();
  void run_threads(Fiber& fiber);
  void begin_thread(Fiber& fiber);
  void give_way(Fiber& fiber);
  Fiber& take_idle();
  void drop_waiting();
  [[noreturn]] void throw_stuck();

  const std::function<void()>* kernel_ = nullptr;
  std::size_t shared_bytes_ = 0;
  std::byte* shared_ = nullptr;
  int threads_ = 0;  // of a block
  bool descending_ = false;
  int begun_ = 0;
  int ended_ = 0;
  std::exception_ptr error_;

  Context scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::deque<Fiber*> ready_;
  std::vector<Fiber*> at_barrier_;
  std::vector<Warp> warps_;
  Fiber* running_ = nullptr;
};

}  // namespace sluice::emulation
