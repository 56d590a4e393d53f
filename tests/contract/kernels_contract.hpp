// The promises that every implementation of Kernels (kernels/kernels.hpp) keeps: each family
// against fp64, on odd sizes and in every dtype. The suites are typed over a backend, a type with
//
//   Memory(bytes), data()        device memory, 256-byte aligned, all ones at first
//   static std::string missing() the reason to skip here; empty: the suite runs
//   static std::unique_ptr<Kernels> make()
//   static void copy(void* to, const void* from, std::size_t bytes)  in order with the kernels
//   static constexpr bool kSlow  an emulation: the largest shapes are left out
//   static constexpr bool kKeepsNanBits  casts keep a NaN's payload as the scalar conversions do
//   static constexpr bool kOneSumOrder  a row's sums add in one order, whatever the dtype
//   static constexpr bool kRoundsBeforeBias  products may be rounded before a bias is added
//   static constexpr bool kFindsWrongTokens, WrongToken  tokens outside the vocabulary throw it
//   static void for_each_variation(run)  run(const Variation&) for every way to compute
//   static constexpr double kLseError   relative error of attention's log-sum-exp
//   static double probability_error(DType)  the most that rounded weights move a mean of ones
//
// One header below for each family; a backend instantiates those that it implements.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
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

// A way to compute: an instruction set and a number of threads, or addresses of another alignment.
// All ways of one offset give the same bits.
struct Variation {
  Kernels& kernels;
  std::int64_t offset = 0;  // elements before an array's first one
  std::string name;
};

// Numbers of an act dtype in a backend's memory, `offset` elements after its beginning.
template <class Backend>
class BackendArray {
 public:
  // Unwritten: all NaN.
  BackendArray(DType type, std::int64_t elems, std::int64_t offset = 0)
      : type_(type),
        elems_(elems),
        offset_bytes_(static_cast<std::size_t>(offset) * dtype_bytes(type)),
        memory_(offset_bytes_ + static_cast<std::size_t>(elems) * dtype_bytes(type)) {}
  explicit BackendArray(const DTypeArray& values, std::int64_t offset = 0)
      : BackendArray(values.type(), static_cast<std::int64_t>(values.size()), offset) {
    Backend::copy(data(), values.data(), values.size() * dtype_bytes(type_));
  }
  void* data() { return static_cast<std::byte*>(memory_.data()) + offset_bytes_; }
  const void* data() const { return static_cast<const std::byte*>(memory_.data()) + offset_bytes_; }
  const void* at(std::int64_t elem) const {
    return static_cast<const std::byte*>(data()) +
           static_cast<std::size_t>(elem) * dtype_bytes(type_);
  }
  float* floats() { return static_cast<float*>(data()); }
  DTypeArray read() const {
    DTypeArray values(type_, elems_);
    Backend::copy(values.data(), data(), values.size() * dtype_bytes(type_));
    return values;
  }

 private:
  DType type_;
  std::int64_t elems_;
  std::size_t offset_bytes_;
  typename Backend::Memory memory_;
};

// Other numbers of type T in a backend's memory.
template <class Backend, class T>
class BackendNumbers {
 public:
  explicit BackendNumbers(const std::vector<T>& values)
      : values_(values), memory_(values.size() * sizeof(T)) {
    Backend::copy(memory_.data(), values.data(), values.size() * sizeof(T));
  }
  T* data() { return static_cast<T*>(memory_.data()); }
  const T* data() const { return static_cast<const T*>(memory_.data()); }
  std::vector<T> read() const {
    std::vector<T> values = values_;
    Backend::copy(values.data(), memory_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::vector<T> values_;  // as put there
  typename Backend::Memory memory_;
};

// Every element as stored; a NaN's payload counts only with `nan_bits`.
inline void expect_same_numbers(const DTypeArray& got, const DTypeArray& want,
                                bool nan_bits = false) {
  ASSERT_EQ(got.size(), want.size());
  const std::size_t bytes = dtype_bytes(want.type());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&got.bytes()[i * bytes], &want.bytes()[i * bytes], bytes) == 0) continue;
    ASSERT_TRUE(!nan_bits && std::isnan(got[i]) && std::isnan(want[i]))
        << i << ": " << got[i] << ", not " << want[i];
  }
}

// |got - want| <= allowed(want) for every element.
template <class Allowed>
void expect_near(const DTypeArray& got, const reference::Doubles& want, const Allowed& allowed,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], allowed(want[i])) << what << " at " << i;
  }
}

template <class Backend>
class KernelsContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Backend::missing().empty()) GTEST_SKIP() << Backend::missing();
    kernels_ = Backend::make();
  }
  Kernels& kernels() { return *kernels_; }

  // check(run(variation)) for one variation of each offset; the others give the same result.
  template <class Run, class Check>
  void everywhere(const Run& run, const Check& check) {
    std::map<std::int64_t, decltype(run(std::declval<const Variation&>()))> first;
    Backend::for_each_variation([&](const Variation& at) {
      SCOPED_TRACE(at.name);
      auto result = run(at);
      const auto [seen, is_first] = first.try_emplace(at.offset, std::move(result));
      if (is_first) {
        check(seen->second);
      } else {
        EXPECT_TRUE(result == seen->second);
      }
    });
  }

 private:
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace sluice::testing
