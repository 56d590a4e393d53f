#include "kernels/cuda/activations.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/host_results.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

using CudaActivations = CudaKernelTestOf;
INSTANTIATE_TEST_SUITE_P(DTypes, CudaActivations, act_dtypes(), dtype_of_test);

// All magnitudes, and the values without a slope of their own: zeros, infinities, NaN.
kernels::host::DTypeArray wide_values(DType dtype, std::int64_t elems, unsigned seed) {
  std::vector<float> values = kernels::host::normal_floats(elems, seed, 3.0f);
  const float special[] = {0.0f,
                           -0.0f,
                           20.0f,
                           -20.0f,
                           1e-6f,
                           300.0f,
                           -300.0f,
                           88.0f,
                           -88.0f,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  for (std::size_t i = 0; i < std::size(special) && i < values.size(); ++i) values[i] = special[i];
  return kernels::host::DTypeArray(dtype, values);
}

TEST_P(CudaActivations, GeluIsTheHosts) {
  for (const std::int64_t elems : {1, 63, 4096, 40001}) {
    for (const std::int64_t offset : {0, 1}) {
      const kernels::host::DTypeArray x = wide_values(GetParam(), elems, 1);
      const kernels::host::DTypeArray dy(GetParam(), kernels::host::normal_floats(elems, 2));
      kernels::host::DTypeArray want_y(GetParam(), elems), want_dx(GetParam(), elems);
      host_kernels().gelu_forward(x.data(), want_y.data(), elems, GetParam());
      host_kernels().gelu_backward(dy.data(), x.data(), want_dx.data(), elems, GetParam());
      const DeviceDTypeArray device_x(x, offset), device_dy(dy);
      DeviceDTypeArray y(GetParam(), elems), dx(GetParam(), elems);
      gelu_forward(nullptr, device_x.data(), y.data(), elems, GetParam());
      gelu_backward(nullptr, device_dy.data(), device_x.data(), dx.data(), elems, GetParam());
      expect_close(y.read(), want_y, 4.0, 1e-6, "y");
      expect_close(dx.read(), want_dx, 4.0, 1e-6, "dx");
    }
  }
}

TEST_P(CudaActivations, SwigluIsTheHosts) {
  constexpr std::int64_t shapes[][2] = {{1, 8}, {3, 7}, {5, 2056}, {70, 24}, {0, 16}};
  for (const auto& [rows, cols] : shapes) {
    const kernels::host::DTypeArray x = wide_values(GetParam(), rows * 2 * cols, 3);
    const kernels::host::DTypeArray dy(GetParam(), kernels::host::normal_floats(rows * cols, 4));
    kernels::host::DTypeArray want_y(GetParam(), rows * cols), want_dx(GetParam(), rows * 2 * cols);
    host_kernels().swiglu_forward(x.data(), want_y.data(), rows, cols, GetParam());
    host_kernels().swiglu_backward(dy.data(), x.data(), want_dx.data(), rows, cols, GetParam());
    const DeviceDTypeArray device_x(x), device_dy(dy);
    DeviceDTypeArray y(GetParam(), rows * cols), dx(GetParam(), rows * 2 * cols);
    swiglu_forward(nullptr, device_x.data(), y.data(), rows, cols, GetParam());
    swiglu_backward(nullptr, device_dy.data(), device_x.data(), dx.data(), rows, cols, GetParam());
    expect_close(y.read(), want_y, 40.0, 1e-6, "y");
    expect_close(dx.read(), want_dx, 40.0, 1e-6, "dx");
  }
}

// The same angles and the same operations: the same bits, but for an angle's last bit in fp64.
TEST_P(CudaActivations, RopeIsTheHosts) {
  const AttentionShape shapes[] = {{2, 70, 3, 1, 16, GetParam()},
                                   {3, 5, 2, 2, 6, GetParam()},
                                   {1, 300, 1, 1, 128, GetParam()},
                                   {0, 8, 1, 1, 8, GetParam()}};
  for (const AttentionShape& shape : shapes) {
    const std::int64_t elems =
        shape.batch * shape.time * (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    for (const bool inverse : {false, true}) {
      kernels::host::DTypeArray want(GetParam(), kernels::host::normal_floats(elems, 5));
      DeviceDTypeArray qkv(want);
      host_kernels().rope(shape, 10000.0f, inverse, want.data());
      rope(nullptr, shape, 10000.0f, inverse, qkv.data());
      const kernels::host::DTypeArray got = qkv.read();
      std::size_t different = 0;
      for (std::size_t i = 0; i < got.size(); ++i) different += got[i] != want[i] ? 1 : 0;
      EXPECT_LE(different, static_cast<std::size_t>(elems / 100000)) << shape.time;
      expect_close(got, want, 4.0, 1e-6, "qkv");
    }
  }
}

TEST_P(CudaActivations, RopeIsUndoneByItsInverse) {
  const AttentionShape shape{2, 33, 2, 1, 32, GetParam()};
  const kernels::host::DTypeArray before(GetParam(),
                                         kernels::host::normal_floats(2 * 33 * 4 * 32, 6));
  DeviceDTypeArray qkv(before);
  rope(nullptr, shape, 500000.0f, false, qkv.data());
  rope(nullptr, shape, 500000.0f, true, qkv.data());
  expect_close(qkv.read(), before, 8.0, host::rounding_of(GetParam()), "qkv");
}

using CudaRopeShape = CudaKernelTest;

TEST_F(CudaRopeShape, WantsAnEvenHead) {
  EXPECT_THROW(rope(nullptr, {1, 4, 1, 1, 7, DType::kF32}, 1e4f, false, nullptr), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
