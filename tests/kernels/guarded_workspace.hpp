// Workspace of exactly the bytes that a kernel asked for, 256-byte aligned, with guards on both
// sides. Filled with NaN patterns: a kernel that reads before it writes shows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/units.hpp"

namespace sluice::kernels::host {

class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::uint64_t bytes)
      : bytes_(bytes),
        whole_(static_cast<std::uint8_t*>(std::aligned_alloc(
            kTensorAlignmentBytes, round_up(bytes, kTensorAlignmentBytes) + 2 * kGuardBytes))) {
    std::memset(whole_.get(), kGuard, total());
    std::memset(data(), 0xff, bytes_);
  }
  ~GuardedWorkspace() {
    const std::uint8_t* const all = whole_.get();
    std::uint64_t broken = 0;
    for (std::uint64_t i = 0; i < kGuardBytes; ++i) broken += all[i] != kGuard;
    for (std::uint64_t i = kGuardBytes + bytes_; i < total(); ++i) broken += all[i] != kGuard;
    EXPECT_EQ(broken, 0u) << "bytes outside of a workspace of " << bytes_ << " were written";
  }
  GuardedWorkspace(const GuardedWorkspace&) = delete;
  GuardedWorkspace& operator=(const GuardedWorkspace&) = delete;

  void* data() { return whole_.get() + kGuardBytes; }
  const void* data() const { return whole_.get() + kGuardBytes; }

 private:
  static constexpr std::uint64_t kGuardBytes = 4096;
  static constexpr std::uint8_t kGuard = 0xa5;
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::uint64_t total() const { return round_up(bytes_, kTensorAlignmentBytes) + 2 * kGuardBytes; }

  std::uint64_t bytes_;
  std::unique_ptr<std::uint8_t, Free> whole_;
};

}  // namespace sluice::kernels::host
