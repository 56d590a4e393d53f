#include "tests/support/cuda_emulation/block_runner.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "tests/support/cuda_emulation/builtins.hpp"

namespace sluice::emulation {

struct BlockRunner::Fiber {
  explicit Fiber(BlockRunner& owner) : runner(owner), context(&BlockRunner::fiber_main, this) {}

  BlockRunner& runner;
  int thread = 0;
  // The call in which it waits; null: it runs, may run, or is idle.
  const char* waits_in = nullptr;
  std::source_location where;
  std::vector<PendingCopy> copies;
  int copy_group = 0;
  Context context;
};

struct BlockRunner::Warp {
  int arrived = 0;
  unsigned exchanges = 0;
  // Two, by turns: a lane may be in its next call while others still read the values of this one,
  // but not in the one after.
  std::array<WarpValues, 2> values;
  std::array<Fiber*, kWarpLanes> waiting{};
  std::source_location where;
};

namespace {

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string describe(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line()) + " in " +
         where.function_name();
}

void check_shape(const LaunchShape& shape) {
  const dim3& grid = shape.grid;
  const dim3& block = shape.block;
  const bool grid_fits = grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 &&
                         grid.z >= 1 && grid.z <= 65535;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (!grid_fits || threads < 1 || threads > 1024 || block.z > 64 ||
      shape.shared_bytes > kMaxSharedBytes) {
    throw DeviceError("launch of a kernel: invalid configuration: grid " + std::to_string(grid.x) +
                      "x" + std::to_string(grid.y) + "x" + std::to_string(grid.z) + ", block " +
                      std::to_string(block.x) + "x" + std::to_string(block.y) + "x" +
                      std::to_string(block.z) + ", " + std::to_string(shape.shared_bytes) +
                      " bytes of shared memory");
  }
}

}  // namespace

BlockRunner::BlockRunner() = default;
BlockRunner::~BlockRunner() = default;

BlockRunner& BlockRunner::current() {
  thread_local BlockRunner runner;
  return runner;
}

void BlockRunner::run(const LaunchShape& shape, const std::function<void()>& kernel) {
  check_shape(shape);
  SLUICE_CHECK(running_ == nullptr);
  kernel_ = &kernel;
  shared_bytes_ = shape.shared_bytes;
  threads_ = static_cast<int>(shape.block.x * shape.block.y * shape.block.z);
  gridDim = {shape.grid.x, shape.grid.y, shape.grid.z};
  blockDim = {shape.block.x, shape.block.y, shape.block.z};
  // Exactly as large as asked for: AddressSanitizer sees accesses beyond.
  const std::size_t allocated = (shared_bytes_ + 255) / 256 * 256;
  const std::unique_ptr<std::byte, decltype(&std::free)> shared(
      static_cast<std::byte*>(allocated == 0 ? nullptr : std::aligned_alloc(256, allocated)),
      &std::free);
  shared_ = shared.get();
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        descending_ = ((x ^ y ^ z) & 1u) != 0;
        run_block();
      }
    }
  }
}

void BlockRunner::run_block() {
  // All ones is a NaN in every format that we have: a read before any write shows.
  if (shared_ != nullptr) std::memset(shared_, 0xff, shared_bytes_);
  begun_ = ended_ = 0;
  error_ = nullptr;
  ready_.clear();
  at_barrier_.clear();
  warps_.resize(static_cast<std::size_t>((threads_ + kWarpLanes - 1) / kWarpLanes));
  for (Warp& warp : warps_) warp.arrived = 0;
  Fiber& first = take_idle();
  running_ = &first;
  Context::switch_between(scheduler_, first.context);
  running_ = nullptr;
  if (error_ != nullptr) {
    drop_waiting();
    std::rethrow_exception(error_);
  }
  if (ended_ != threads_) throw_stuck();
}

void BlockRunner::fiber_main(void* argument) {
  Fiber& fiber = *static_cast<Fiber*>(argument);
  while (true) fiber.runner.run_threads(fiber);
}

// Runs threads that have not begun, then leaves the fiber idle and goes on with another.
void BlockRunner::run_threads(Fiber& fiber) {
  while (begun_ < threads_ && error_ == nullptr) {
    begin_thread(fiber);
    try {
      (*kernel_)();
      ++ended_;
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  idle_.push_back(&fiber);
  give_way(fiber);
}

void BlockRunner::begin_thread(Fiber& fiber) {
  fiber.thread = descending_ ? threads_ - 1 - begun_ : begun_;
  ++begun_;
  fiber.copies.clear();
  fiber.copy_group = 0;
  const auto at = static_cast<unsigned>(fiber.thread);
  threadIdx = {at % blockDim.x, at / blockDim.x % blockDim.y, at / blockDim.x / blockDim.y};
}

// Switches to a fiber that can go on; returns when this fiber is taken up again.
void BlockRunner::give_way(Fiber& fiber) {
  Fiber* next = nullptr;
  if (error_ == nullptr) {
    if (!ready_.empty()) {
      next = ready_.front();
      ready_.pop_front();
    } else if (begun_ < threads_) {
      next = &take_idle();
    }
  }
  if (next != &fiber) {
    const uint3 index = threadIdx;
    running_ = next;
    Context::switch_between(fiber.context, next != nullptr ? next->context : scheduler_);
    running_ = &fiber;
    threadIdx = index;
  }
  fiber.waits_in = nullptr;
}

BlockRunner::Fiber& BlockRunner::take_idle() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(*this));
    return *fibers_.back();
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return *fiber;
}

void BlockRunner::drop_waiting() {
  std::erase_if(fibers_, [&](const std::unique_ptr<Fiber>& fiber) {
    return std::find(idle_.begin(), idle_.end(), fiber.get()) == idle_.end();
  });
}

void BlockRunner::throw_stuck() {
  std::map<std::string, int> places;
  for (const auto& fiber : fibers_) {
    if (fiber->waits_in != nullptr) {
      ++places[std::string(fiber->waits_in) + " at " + describe(fiber->where)];
    }
  }
  std::string message = "divergent kernel: block (" + std::to_string(blockIdx.x) + ", " +
                        std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ") of " +
                        std::to_string(threads_) + " threads: " + std::to_string(ended_) +
                        " have ended";
  for (const auto& [place, count] : places) {
    message += "; " + std::to_string(count) + " wait in " + place;
  }
  drop_waiting();
  throw DeviceError(message);
}

void BlockRunner::barrier(const std::source_location& where) {
  Fiber& self = *running_;
  if (!at_barrier_.empty() && !same_place(at_barrier_.front()->where, where)) {
    throw DeviceError("divergent kernel: threads of a block wait in different barriers: " +
                      describe(at_barrier_.front()->where) + " and " + describe(where));
  }
  if (static_cast<int>(at_barrier_.size()) + 1 == threads_) {
    ready_.insert(ready_.end(), at_barrier_.begin(), at_barrier_.end());
    at_barrier_.clear();
    return;
  }
  self.waits_in = "__syncthreads";
  self.where = where;
  at_barrier_.push_back(&self);
  give_way(self);
}

const WarpValues& BlockRunner::exchange(unsigned mask, const void* value, std::size_t bytes,
                                        const std::source_location& where) {
  Fiber& self = *running_;
  Warp& warp = warps_[static_cast<std::size_t>(self.thread / kWarpLanes)];
  if (mask != 0xffffffffu || threads_ - self.thread / kWarpLanes * kWarpLanes < kWarpLanes) {
    throw DeviceError("a warp-wide call without all 32 lanes: " + describe(where));
  }
  if (warp.arrived == 0) {
    warp.where = where;
  } else if (!same_place(warp.where, where)) {
    throw DeviceError("divergent kernel: lanes of a warp meet in different calls: " +
                      describe(warp.where) + " and " + describe(where));
  }
  WarpValues& values = warp.values[warp.exchanges % 2];
  std::memcpy(values[static_cast<std::size_t>(self.thread % kWarpLanes)].data(), value, bytes);
  if (warp.arrived + 1 < kWarpLanes) {
    warp.waiting[static_cast<std::size_t>(warp.arrived++)] = &self;
    self.waits_in = "a warp-wide call";
    self.where = where;
    give_way(self);
  } else {
    ready_.insert(ready_.end(), warp.waiting.begin(), warp.waiting.begin() + warp.arrived);
    warp.arrived = 0;
    ++warp.exchanges;
  }
  return values;
}

std::byte* BlockRunner::dynamic_shared() {
  return shared_;
}

int BlockRunner::lane() const {
  return running_->thread % kWarpLanes;
}

std::vector<PendingCopy>& BlockRunner::pending_copies() {
  return running_->copies;
}

int& BlockRunner::copy_group() {
  return running_->copy_group;
}

}  // namespace sluice::emulation
