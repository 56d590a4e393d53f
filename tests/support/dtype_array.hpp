// Shared by the suites of the vectorised host kernels: arrays of any act dtype, and runs over every
// instruction set and several thread counts.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "kernels/host/parallel.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::host {

// `elems` numbers of one dtype, with a few bytes of guard after them.
class DTypeArray {
 public:
  DTypeArray(DType type, std::int64_t elems)
      : type_(type),
        elems_(static_cast<std::size_t>(elems)),
        bytes_(elems_ * dtype_bytes(type) + kGuardBytes, kGuard) {}

  // Rounded to nearest even.
  DTypeArray(DType type, const std::vector<float>& values)
      : DTypeArray(type, static_cast<std::int64_t>(values.size())) {
    for (std::size_t i = 0; i < elems_; ++i) set(i, values[i]);
  }

  void set(std::size_t i, float value) {
    if (type_ == DType::kBF16) {
      const bf16 rounded = bf16_from_float(value);
      std::memcpy(bytes_.data() + 2 * i, &rounded, 2);
    } else if (type_ == DType::kF16) {
      const f16 rounded = f16_from_float(value);
      std::memcpy(bytes_.data() + 2 * i, &rounded, 2);
    } else {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    }
  }

  float operator[](std::size_t i) const {
    if (type_ == DType::kBF16) {
      bf16 half;
      std::memcpy(&half, bytes_.data() + 2 * i, 2);
      return to_float(half);
    }
    if (type_ == DType::kF16) {
      f16 half;
      std::memcpy(&half, bytes_.data() + 2 * i, 2);
      return to_float(half);
    }
    float value;
    std::memcpy(&value, bytes_.data() + 4 * i, 4);
    return value;
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  DType type() const { return type_; }
  std::size_t size() const { return elems_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  bool guard_is_whole() const {
    for (std::size_t i = bytes_.size() - kGuardBytes; i < bytes_.size(); ++i) {
      if (bytes_[i] != kGuard) return false;
    }
    return true;
  }
  bool operator==(const DTypeArray& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::uint8_t kGuard = 0xa5;
  DType type_;
  std::size_t elems_;
  std::vector<std::uint8_t> bytes_;
};

inline std::vector<float> normal_floats(std::int64_t elems, unsigned seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(elems));
  for (float& value : values) value = normal(engine);
  return values;
}

inline reference::Doubles doubles(const DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

// The distance that one rounding to the dtype makes, relative to the number.
inline double rounding_of(DType type) {
  return type == DType::kBF16 ? 0x1p-8 : type == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

// The rounding of one number; fp16's subnormals are 2^-24 apart, those of the others below 1e-38.
inline double rounding_at(DType type, double value) {
  return rounding_of(type) * std::abs(value) + (type == DType::kF16 ? 0x1p-25 : 1e-38);
}

// A number of larger magnitude may be infinity when stored.
inline double largest_of(DType type) {
  return type == DType::kF16 ? 65504.0 : 3e38;
}

// run(parallel, name) for every instruction set that this CPU has and the build made, by 1 and by 3
// threads.
template <class Run>
void on_every_target(const Run& run) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const int threads : {1, 3}) {
      const Parallel parallel(threads);
      run(parallel, std::string(hwy::TargetName(target)) + " x" + std::to_string(threads));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// make(parallel) must give the same bytes everywhere; returns them.
template <class Make>
DTypeArray same_bits_everywhere(const Make& make) {
  DTypeArray first = make(Parallel(1));
  EXPECT_TRUE(first.guard_is_whole());
  on_every_target([&](const Parallel& parallel, const std::string& name) {
    EXPECT_TRUE(make(parallel) == first) << name;
  });
  return first;
}

}  // namespace sluice::kernels::host
