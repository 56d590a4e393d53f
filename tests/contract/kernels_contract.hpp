// The promises that every implementation of Kernels (kernels/kernels.hpp) keeps: each family
// against fp64, on odd sizes and in every dtype. The suites are typed over a backend, a type with
//
//   Memory(bytes), data()        device memory, 256-byte aligned, all ones at first
//   static std::string missing() the reason to skip here; empty: the suite runs
//   static std::unique_ptr<Kernels> make()
//   static void copy(void* to, const void* from, std::size_t bytes)  in order with the kernels
//   static constexpr bool kSlow  an emulation: the largest shapes are left out
//   static constexpr double kLseError   relative error of attention's log-sum-exp
//   static double probability_error(DType)  the most that rounded weights move a mean of ones
//
// One header below for each family; a backend instantiates those that it implements.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "tests/support/dtype_array.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::testing {

using kernels::Kernels;
using kernels::host::doubles;
using kernels::host::DTypeArray;
using kernels::host::normal_floats;
using kernels::host::rounding_at;
using kernels::host::rounding_of;

inline constexpr DType kActDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Numbers of an act dtype in a backend's memory.
template <class Backend>
class BackendArray {
 public:
  // Unwritten: all NaN.
  BackendArray(DType type, std::int64_t elems)
      : type_(type), elems_(elems), memory_(static_cast<std::size_t>(elems) * dtype_bytes(type)) {}
  explicit BackendArray(const DTypeArray& values)
      : BackendArray(values.type(), static_cast<std::int64_t>(values.size())) {
    Backend::copy(memory_.data(), values.data(), values.size() * dtype_bytes(type_));
  }
  void* data() { return memory_.data(); }
  float* floats() { return static_cast<float*>(memory_.data()); }
  DTypeArray read() {
    DTypeArray values(type_, elems_);
    Backend::copy(values.data(), memory_.data(), values.size() * dtype_bytes(type_));
    return values;
  }

 private:
  DType type_;
  std::int64_t elems_;
  typename Backend::Memory memory_;
};

template <class Backend>
class KernelsContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Backend::missing().empty()) GTEST_SKIP() << Backend::missing();
    kernels_ = Backend::make();
  }
  Kernels& kernels() { return *kernels_; }

 private:
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace sluice::testing
