// Parts of one buffer, each at a multiple of 256 bytes: how layers cut saved, context and
// workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.hpp"

namespace sluice {

class Region {
 public:
  explicit Region(std::byte* base = nullptr) : base_(base) {}
  // The next part; null while only sizes are counted (base null).
  std::byte* take(std::uint64_t bytes) {
    const std::uint64_t at = used_;
    used_ += round_up(bytes, kTensorAlignmentBytes);
    return base_ == nullptr ? nullptr : base_ + at;
  }
  template <typename T>
  T* take_as(std::uint64_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  std::uint64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

}  // namespace sluice
