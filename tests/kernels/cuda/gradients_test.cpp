// Sums over ranks on a GPU. The contract has the other plumbing of gradients.
#include "kernels/cuda/gradients.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::cuda {
namespace {

using CudaGradients = CudaKernelTest;

// Element i of the sum of parts [begin, end), by the definition of law 2's tree.
float sum_along_tree(const std::vector<host::DTypeArray>& parts, std::size_t begin, std::size_t end,
                     std::size_t i) {
  if (end - begin == 1) return parts[begin][i];
  std::size_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return sum_along_tree(parts, begin, begin + left, i) +
         sum_along_tree(parts, begin + left, end, i);
}

// The reduction adds along the tree, in fp32, and rounds once.
TEST_F(CudaGradients, FoldsRanksAlongTheTree) {
  constexpr std::int64_t kElems = 777;
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
      std::vector<host::DTypeArray> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        parts.emplace_back(type, host::normal_floats(kElems, 10u + static_cast<unsigned>(rank)));
      }
      std::vector<float> sums(kElems);
      for (std::size_t i = 0; i < kElems; ++i) sums[i] = sum_along_tree(parts, 0, parts.size(), i);
      const host::DTypeArray want(type, sums);
      const std::size_t bytes = kElems * dtype_bytes(type);
      for (int own = 0; own < ranks; ++own) {
        std::vector<std::uint8_t> gathered;
        for (const host::DTypeArray& part : parts) {
          gathered.insert(gathered.end(), part.bytes().begin(),
                          part.bytes().begin() + static_cast<std::ptrdiff_t>(bytes));
        }
        // The reduction does not read the own rank's place.
        std::fill_n(gathered.begin() + own * static_cast<std::ptrdiff_t>(bytes), bytes, 0xff);
        const DeviceBytes others(gathered.data(), gathered.size());
        DeviceDTypeArray in_place(parts[static_cast<std::size_t>(own)]);
        fold_ranks(nullptr, {in_place.data(), others.data(), own, ranks}, type, in_place.data(),
                   type, kElems);
        EXPECT_TRUE(in_place.read() == want) << dtype_name(type) << " " << own << " of " << ranks;
      }
    }
  }
}

TEST_F(CudaGradients, FoldsWideAndWholeNumbersOfRanks) {
  const DeviceArray<double> wide(std::vector<double>{0x1p60, 1.0, -0x1p60, 1.0});
  DeviceArray<double> own(std::vector<double>{-0x1p60, 2.0});
  fold_ranks(nullptr, {own.data(), wide.data(), 1, 2}, DType::kF64, own.data(), DType::kF64, 2);
  EXPECT_EQ(own.read(), (std::vector<double>{0.0, 3.0}));
  const DeviceArray<std::int32_t> whole(std::vector<std::int32_t>{5, -7, 0, 0});
  DeviceArray<std::int32_t> mine(std::vector<std::int32_t>{-6, 9});
  fold_ranks(nullptr, {mine.data(), whole.data(), 1, 2}, DType::kI32, mine.data(), DType::kI32, 2);
  EXPECT_EQ(mine.read(), (std::vector<std::int32_t>{-1, 2}));
  EXPECT_THROW(fold_ranks(nullptr, {mine.data(), whole.data(), 1, 2}, DType::kU8, mine.data(),
                          DType::kU8, 2),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
