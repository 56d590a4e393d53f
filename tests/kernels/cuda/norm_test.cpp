#include "kernels/cuda/norm.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/host_results.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

// Rows of one warp, of several, that do not divide into packs, and longer than 1,024 threads hold.
constexpr std::int64_t kNormShapes[][2] = {{1, 8},    {5, 96},   {3, 97},    {7, 768},
                                           {2, 2500}, {1, 5001}, {2, 33000}, {0, 64}};

struct NormArrays {
  NormArrays(const NormShape& shape, bool with_bias)
      : x(shape.dtype, kernels::host::normal_floats(shape.rows * shape.cols, 1, 2.0f)),
        dy(shape.dtype, kernels::host::normal_floats(shape.rows * shape.cols, 2)),
        weight(shape.dtype, kernels::host::normal_floats(shape.cols, 3)),
        bias(shape.dtype, kernels::host::normal_floats(with_bias ? shape.cols : 0, 4)),
        residual(shape.dtype, kernels::host::normal_floats(shape.rows * shape.cols, 5)),
        mean(static_cast<std::size_t>(shape.rows), 0.25f),
        rstd(static_cast<std::size_t>(shape.rows), 0.5f) {
    // A mean far from zero: sums of squares must not cancel.
    for (std::size_t i = 0; i < x.size(); ++i) x.set(i, x[i] + 4.0f);
  }
  const void* bias_or_null() const { return bias.size() == 0 ? nullptr : bias.data(); }

  kernels::host::DTypeArray x, dy, weight, bias, residual;
  std::vector<float> mean, rstd;
};

std::string name_of(const NormShape& shape) {
  return std::to_string(shape.rows) + "x" + std::to_string(shape.cols) +
         (shape.rms ? " rms" : " layer");
}

using CudaNorm = CudaKernelTestOf;
INSTANTIATE_TEST_SUITE_P(DTypes, CudaNorm, act_dtypes(), dtype_of_test);

// run(shape, arrays, offset): offset elements before each array, so that rows are not aligned.
template <class Run>
void for_all_shapes(DType dtype, const Run& run) {
  for (const auto& [rows, cols] : kNormShapes) {
    for (const bool rms : {false, true}) {
      const NormShape shape{rows, cols, rms, 1e-5f, dtype};
      for (const std::int64_t offset : {0, 1}) run(shape, NormArrays(shape, !rms), offset);
    }
  }
}

TEST_P(CudaNorm, ForwardIsTheHosts) {
  for_all_shapes(GetParam(), [&](const NormShape& shape, NormArrays host, std::int64_t offset) {
    kernels::host::DTypeArray want(shape.dtype, shape.rows * shape.cols);
    host_kernels().norm_forward(shape, host.x.data(), host.weight.data(), host.bias_or_null(),
                                want.data(), host.mean.data(), host.rstd.data());
    const DeviceDTypeArray x(host.x, offset), weight(host.weight), bias(host.bias);
    DeviceDTypeArray y(shape.dtype, shape.rows * shape.cols);
    DeviceArray<float> mean(std::vector<float>(host.mean.size(), 0.25f)), rstd(shape.rows);
    norm_forward(nullptr, shape, x.data(), weight.data(), shape.rms ? nullptr : bias.data(),
                 y.data(), mean.data(), rstd.data());
    expect_close(y.read(), want, 4.0, 1e-5, "y " + name_of(shape));
    expect_close(mean.read(), host.mean, 4.0, 1e-6, "mean " + name_of(shape));
    expect_close(rstd.read(), host.rstd, 1.0, 1e-6, "rstd " + name_of(shape));
  });
}

TEST_P(CudaNorm, BackwardInputIsTheHosts) {
  for_all_shapes(GetParam(), [&](const NormShape& shape, NormArrays host, std::int64_t offset) {
    for (const bool with_residual : {false, true}) {
      const void* const host_residual = with_residual ? host.residual.data() : nullptr;
      kernels::host::DTypeArray want(shape.dtype, shape.rows * shape.cols);
      host_kernels().norm_backward_input(shape, host.dy.data(), host.x.data(), host.weight.data(),
                                         host.mean.data(), host.rstd.data(), host_residual,
                                         want.data());
      const DeviceDTypeArray dy(host.dy, offset), x(host.x), weight(host.weight);
      const DeviceDTypeArray residual(host.residual);
      const DeviceArray<float> mean(host.mean), rstd(host.rstd);
      DeviceDTypeArray dx(shape.dtype, shape.rows * shape.cols);
      norm_backward_input(nullptr, shape, dy.data(), x.data(), weight.data(), mean.data(),
                          rstd.data(), with_residual ? residual.data() : nullptr, dx.data());
      expect_close(dx.read(), want, 4.0, 2e-6, "dx " + name_of(shape));
    }
  });
}

TEST_P(CudaNorm, BackwardWeightIsTheHosts) {
  constexpr std::int64_t shapes[][2] = {{0, 24}, {3, 8}, {700, 40}, {1500, 33}};
  for (const auto& [rows, cols] : shapes) {
    for (const bool rms : {false, true}) {
      const NormShape shape{rows, cols, rms, 1e-5f, GetParam()};
      NormArrays host(shape, !rms);
      kernels::host::DTypeArray want_weight(shape.dtype, cols), want_bias(shape.dtype, cols);
      host_kernels().norm_backward_weight(shape, host.dy.data(), host.x.data(), host.mean.data(),
                                          host.rstd.data(), want_weight.data(),
                                          rms ? nullptr : want_bias.data());
      const DeviceDTypeArray dy(host.dy), x(host.x);
      const DeviceArray<float> mean(host.mean), rstd(host.rstd);
      DeviceDTypeArray dweight(shape.dtype, cols), dbias(shape.dtype, cols);
      norm_backward_weight(nullptr, shape, dy.data(), x.data(), mean.data(), rstd.data(),
                           dweight.data(), rms ? nullptr : dbias.data());
      // fp32 sums of `rows` numbers of about 2.
      const double magnitude = 4.0 * static_cast<double>(rows);
      expect_close(dweight.read(), want_weight, magnitude, 1e-6, "dweight " + name_of(shape));
      if (!rms) expect_close(dbias.read(), want_bias, magnitude, 1e-6, "dbias " + name_of(shape));
    }
  }
}

TEST_P(CudaNorm, CarriesNansAndInfinities) {
  const NormShape shape{2, 64, false, 1e-5f, GetParam()};
  NormArrays host(shape, true);
  host.x.set(3, std::numeric_limits<float>::quiet_NaN());
  const DeviceDTypeArray x(host.x), weight(host.weight), bias(host.bias);
  DeviceDTypeArray y(shape.dtype, 128);
  DeviceArray<float> mean(2), rstd(2);
  norm_forward(nullptr, shape, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
               rstd.data());
  const kernels::host::DTypeArray got = y.read();
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(got[i]), i < 64) << i;
}

using CudaNormShape = CudaKernelTest;

TEST_F(CudaNormShape, LayerNormKeepsItsMeans) {
  const NormShape shape{1, 8, false, 1e-5f, DType::kF32};
  EXPECT_THROW(norm_forward(nullptr, shape, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
