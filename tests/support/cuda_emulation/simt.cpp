#include "tests/support/cuda_emulation/simt.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.hpp"

namespace sluice::emulation {
namespace {

using HostFunction = void (*)(void*);
using LaunchHostFunction = int (*)(cudaStream_t, HostFunction, void*);

struct QueuedKernel {
  LaunchShape shape;
  std::function<void()> kernel;
};

void run_queued(void* data) {
  const std::unique_ptr<QueuedKernel> queued(static_cast<QueuedKernel*>(data));
  try {
    BlockRunner::current().run(queued->shape, queued->kernel);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emulated kernel on a stream: %s\n", error.what());
    std::abort();
  }
}

LaunchHostFunction find_launch_host_function() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    throw DeviceError("a kernel was launched on a stream, but no libcuda.so.1 is loaded");
  }
  void* const symbol = ::dlsym(driver, "cuLaunchHostFunc");
  ::dlclose(driver);  // drops this reference only: the library stays loaded
  if (symbol == nullptr) throw DeviceError("libcuda.so.1 has no cuLaunchHostFunc");
  return reinterpret_cast<LaunchHostFunction>(symbol);
}

void finish(const PendingCopy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, copy.zeroes);
}

bool aligned_to_16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

}  // namespace

void launch(cudaStream_t stream, const LaunchShape& shape, std::function<void()> kernel) {
  if (stream == nullptr) {
    BlockRunner::current().run(shape, kernel);
    return;
  }
  auto queued = std::make_unique<QueuedKernel>(QueuedKernel{shape, std::move(kernel)});
  const int status = find_launch_host_function()(stream, &run_queued, queued.get());
  if (status != 0) {
    throw DeviceError("launch of a kernel: cuLaunchHostFunc gave " + std::to_string(status));
  }
  static_cast<void>(queued.release());  // run_queued's now
}

// A copy lands when it is waited for, not before: a thread that reads too early finds NaNs.
void copy_async(void* shared, const void* global, int bytes) {
  if (!aligned_to_16(shared) || !aligned_to_16(global) || bytes < 0 || bytes > 16) {
    throw DeviceError("cp.async: 16 bytes between addresses that are not aligned to 16");
  }
  std::memset(shared, 0xff, 16);
  BlockRunner& runner = BlockRunner::current();
  const auto valid = static_cast<std::size_t>(bytes);
  runner.pending_copies().push_back({shared, global, valid, 16 - valid, runner.copy_group()});
}

void commit_copies() {
  ++BlockRunner::current().copy_group();
}

void wait_for_copies(int groups_left) {
  BlockRunner& runner = BlockRunner::current();
  std::vector<PendingCopy>& copies = runner.pending_copies();
  // Groups up to this have finished; copies not committed belong to a later one.
  const int last = runner.copy_group() - 1 - groups_left;
  std::erase_if(copies, [&](const PendingCopy& copy) {
    if (copy.group > last) return false;
    finish(copy);
    return true;
  });
}

// PTX ISA, "ldmatrix": lane i names row i % 8 of matrix i / 8; register j of a lane holds elements
// 2 (lane % 4) and the next of row lane / 4 of matrix j, or of its transpose.
void load_matrices(std::uint32_t (&registers)[4], const void* row, bool transposed,
                   const Place& where) {
  if (!aligned_to_16(row)) {
    throw DeviceError("ldmatrix: a row is not aligned to 16 bytes");
  }
  std::array<std::uint16_t, 8> mine;
  std::memcpy(mine.data(), row, 16);
  BlockRunner& runner = BlockRunner::current();
  const WarpValues& values = runner.exchange(0xffffffffu, mine.data(), 16, where);
  const int lane = runner.lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](int r, int c) {
      const auto elements =
          lane_value<std::array<std::uint16_t, 8>>(values, matrix * 8 + (transposed ? c : r));
      return elements[static_cast<std::size_t>(transposed ? r : c)];
    };
    const int r = lane / 4, c = lane % 4 * 2;
    registers[matrix] = static_cast<std::uint32_t>(element(r, c)) |
                        static_cast<std::uint32_t>(element(r, c + 1)) << 16;
  }
}

namespace {

struct Fragments {
  std::uint32_t a[4];
  std::uint32_t b[2];
};

std::uint16_t half_of(std::uint32_t pair, int index) {
  return static_cast<std::uint16_t>(pair >> (index % 2 * 16));
}

}  // namespace

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type". With g = lane / 4 and
// t = lane % 4, a lane holds of A [16, 16] rows g (registers 0, 2) and g + 8 (1, 3), columns 2t and
// the next (0, 1) and those plus 8 (2, 3); of B [16, 8] column g, rows 2t and the next, and those
// plus 8; of D [16, 8] rows g (0, 1) and g + 8 (2, 3), columns 2t and the next. Products are exact;
// the sum's rounding is not defined, here it is fp64 rounded once.
void multiply_accumulate(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                         Widen widen, const Place& where) {
  Fragments mine;
  std::memcpy(mine.a, a, sizeof(a));
  std::memcpy(mine.b, b, sizeof(b));
  BlockRunner& runner = BlockRunner::current();
  const WarpValues& values = runner.exchange(0xffffffffu, &mine, sizeof(mine), where);
  const int lane = runner.lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    double sum = 0.0;
    for (int k = 0; k < 16; ++k) {
      const auto& of_a = values[static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2)];
      const auto& of_b = values[static_cast<std::size_t>(column * 4 + k % 8 / 2)];
      std::uint32_t a_pair, b_pair;
      std::memcpy(&a_pair, of_a.data() + 4 * (row / 8 + k / 8 * 2), 4);
      std::memcpy(&b_pair, of_b.data() + 16 + 4 * (k / 8), 4);
      sum += static_cast<double>(widen(half_of(a_pair, k))) * widen(half_of(b_pair, k));
    }
    d[i] = static_cast<float>(d[i] + sum);
  }
}

}  // namespace sluice::emulation
