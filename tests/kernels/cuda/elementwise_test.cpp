#include "kernels/cuda/elementwise.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/host_results.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

// Below and above a pack, a block, and all blocks of the emulated machine.
constexpr std::int64_t kSizes[] = {0, 1, 7, 8, 255, 2048, 2049, 50003};

using CudaElementwise = CudaKernelTestOf;
INSTANTIATE_TEST_SUITE_P(DTypes, CudaElementwise, act_dtypes(), dtype_of_test);

TEST_P(CudaElementwise, AddRoundsTheSumOnce) {
  for (const std::int64_t elems : kSizes) {
    for (const std::int64_t offset : {0, 3}) {
      const kernels::host::DTypeArray a(GetParam(), kernels::host::normal_floats(elems, 1));
      const kernels::host::DTypeArray b(GetParam(), kernels::host::normal_floats(elems, 2, 1e3f));
      const DeviceDTypeArray device_a(a, offset), device_b(b);
      DeviceDTypeArray out(GetParam(), elems);
      add(nullptr, device_a.data(), device_b.data(), out.data(), elems, GetParam());
      kernels::host::DTypeArray want(GetParam(), elems);
      for (std::size_t i = 0; i < want.size(); ++i) want.set(i, a[i] + b[i]);
      EXPECT_TRUE(out.read() == want) << elems << " from " << offset;
    }
  }
}

TEST_P(CudaElementwise, FoldAddsInPlace) {
  const std::int64_t elems = 5001;
  const kernels::host::DTypeArray a(GetParam(), kernels::host::normal_floats(elems, 3));
  const kernels::host::DTypeArray b(GetParam(), kernels::host::normal_floats(elems, 4));
  DeviceDTypeArray into(a);
  const DeviceDTypeArray from(b);
  fold(nullptr, into.data(), from.data(), GetParam(), elems);
  kernels::host::DTypeArray want(GetParam(), elems);
  for (std::size_t i = 0; i < want.size(); ++i) want.set(i, a[i] + b[i]);
  EXPECT_TRUE(into.read() == want);
}

TEST_P(CudaElementwise, ColumnSumIsTheHosts) {
  constexpr std::int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 64}, {513, 40}, {1700, 37}};
  for (const auto& [rows, cols] : shapes) {
    for (const std::int64_t offset : {0, 1}) {
      const kernels::host::DTypeArray x(GetParam(), kernels::host::normal_floats(rows * cols, 6));
      kernels::host::DTypeArray want(GetParam(), cols);
      host_kernels().column_sum(x.data(), want.data(), rows, cols, GetParam());
      const DeviceDTypeArray device_x(x, offset);
      DeviceDTypeArray out(GetParam(), cols);
      column_sum(nullptr, device_x.data(), out.data(), rows, cols, GetParam());
      expect_close(out.read(), want, static_cast<double>(rows), 1e-6,
                   std::to_string(rows) + "x" + std::to_string(cols));
    }
  }
}

using CudaZero = CudaKernelTest;

TEST_F(CudaZero, WritesItsBytesAndNoOthers) {
  for (const std::size_t begin : {0u, 1u, 15u, 16u}) {
    for (const std::size_t bytes : {0u, 1u, 5u, 16u, 31u, 300000u}) {
      DeviceArray<std::uint8_t> data(static_cast<std::int64_t>(begin + bytes + 40));
      zero(nullptr, data.data() + begin, bytes);
      std::vector<std::uint8_t> want(begin + bytes + 40, 0xff);
      std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(begin), bytes, std::uint8_t{0});
      EXPECT_EQ(data.read(), want) << begin << " + " << bytes;
    }
  }
}

TEST_F(CudaZero, AddRefusesOtherTypes) {
  EXPECT_THROW(add(nullptr, nullptr, nullptr, nullptr, 4, DType::kI32), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
