// Results of kernels/cuda are held to those of the host's kernels: to the bit where the same
// operations are promised, else within the roundings of the dtype and of fp32 sums.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "tests/kernels/cuda/device_array.hpp"

namespace sluice::kernels::cuda {

inline Kernels& host_kernels() {
  static const std::unique_ptr<Kernels> kernels = make_host_kernels({.threads = 2});
  return *kernels;
}

// |got - want| <= two roundings to the dtype + relative * magnitude, for every element; NaN where
// NaN is wanted. magnitude: of the terms that were added up on the way.
inline void expect_close(const host::DTypeArray& got, const host::DTypeArray& want,
                         double magnitude, double relative, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double a = got[i], b = want[i];
    const double allowed = 2.0 * host::rounding_at(want.type(), b) + relative * magnitude;
    const bool same = std::isnan(b)   ? std::isnan(a)
                      : std::isinf(b) ? a == b
                                      : std::abs(a - b) <= allowed;
    if (!same && ++wrong <= 3) ADD_FAILURE() << what << "[" << i << "]: " << a << ", not " << b;
  }
  EXPECT_EQ(wrong, 0u) << what;
}

inline void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                         double magnitude, double relative, const std::string& what) {
  expect_close(host::DTypeArray(DType::kF32, got), host::DTypeArray(DType::kF32, want), magnitude,
               relative, what);
}

class CudaKernelTestOf : public CudaKernelTest, public ::testing::WithParamInterface<DType> {};

inline auto act_dtypes() {
  return ::testing::Values(DType::kF32, DType::kBF16, DType::kF16);
}
inline std::string dtype_of_test(const ::testing::TestParamInfo<DType>& info) {
  return std::string(dtype_name(info.param));
}

}  // namespace sluice::kernels::cuda
