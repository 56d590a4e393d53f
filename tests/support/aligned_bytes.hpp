// Page-aligned memory for transfers and registrations.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/units.hpp"

namespace sluice::testing {

// Page-aligned bytes; at(offset) may be anything.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::uint64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, round_up(bytes + 1, 4096)))) {
    std::memset(data_, 0, round_up(bytes + 1, 4096));
  }
  ~AlignedBytes() { std::free(data_); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* at(std::uint64_t offset = 0) const { return data_ + offset; }
  std::uint64_t bytes() const { return bytes_; }
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < bytes_; ++i) data_[i] = static_cast<std::byte>(random());
  }

 private:
  std::uint64_t bytes_;
  std::byte* data_;
};

}  // namespace sluice::testing
