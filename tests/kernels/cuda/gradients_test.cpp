// Gradient plumbing on a GPU: the host's bits.
#include "kernels/cuda/gradients.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/elementwise.hpp"
#include "kernels/kernels.hpp"
#include "tests/kernels/cuda/device_array.hpp"
#include "tests/kernels/cuda/update_chunk.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

constexpr DType kActs[] = {DType::kBF16, DType::kF16, DType::kF32};

// Normal numbers among all kinds of others: NaNs with payloads, infinities, denormals of either
// precision, ties, and numbers that round to infinity.
kernels::host::DTypeArray numbers(DType type, std::int64_t elems, unsigned seed) {
  kernels::host::DTypeArray array(type, kernels::host::normal_floats(elems, seed));
  const std::uint32_t specials[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                    0xffa12345, 0x00000001, 0x807fffff, 0x3f808000, 0x3f818000,
                                    0xbf808000, 0x7f7fffff, 0x477fefff, 0x477ff000, 0x33000000,
                                    0x33000001, 0x387fe000, 0x38800000, 0x7f7f8000, 0x3f807fff};
  std::size_t i = 0;
  for (const std::uint32_t bits : specials) {
    if ((i += 3) >= array.size()) break;
    auto* const bytes = static_cast<std::uint8_t*>(array.data());
    const std::uint32_t of_type = type == DType::kF32 ? bits : bits >> 16;
    std::memcpy(bytes + i * dtype_bytes(type), &of_type, dtype_bytes(type));
  }
  return array;
}

void expect_same(const kernels::host::DTypeArray& got, const kernels::host::DTypeArray& want) {
  ASSERT_EQ(got.size(), want.size());
  const std::size_t bytes = dtype_bytes(want.type());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(
        same_number(want.type(), got.bytes().data() + i * bytes, want.bytes().data() + i * bytes))
        << i;
  }
}

class CudaGradients : public CudaKernelTest {
 protected:
  std::unique_ptr<Kernels> host_ = make_host_kernels({.threads = 1});
};

TEST_F(CudaGradients, CastsBetweenAllDtypes) {
  for (const DType from : kActs) {
    for (const DType to : kActs) {
      for (const bool weight_rounding : {false, true}) {
        for (const std::int64_t elems : {1, 3, 4, 517, 4099}) {
          const kernels::host::DTypeArray in = numbers(from, elems, 1);
          kernels::host::DTypeArray want(to, elems);
          host_->cast(in.data(), from, want.data(), to, weight_rounding, elems);
          for (const std::int64_t offset : {0, 1}) {
            const DeviceDTypeArray on_device(in, offset);
            DeviceDTypeArray out(to, elems, offset);
            cast(nullptr, on_device.data(), from, out.data(), to, weight_rounding, elems);
            expect_same(out.read(), want);
          }
        }
      }
    }
  }
}

// All 2^16 bf16 and fp16 numbers, and as many of fp32, to the bit but for NaNs.
TEST_F(CudaGradients, CastsEveryHalf) {
  constexpr std::int64_t kAll = 1 << 16;
  for (const DType from : {DType::kBF16, DType::kF16}) {
    kernels::host::DTypeArray in(from, kAll);
    for (std::uint32_t bits = 0; bits < kAll; ++bits) {
      std::memcpy(static_cast<std::uint8_t*>(in.data()) + 2 * bits, &bits, 2);
    }
    const DeviceDTypeArray on_device(in);
    for (const DType to : kActs) {
      kernels::host::DTypeArray want(to, kAll);
      host_->cast(in.data(), from, want.data(), to, false, kAll);
      DeviceDTypeArray out(to, kAll);
      cast(nullptr, on_device.data(), from, out.data(), to, false, kAll);
      expect_same(out.read(), want);
    }
  }
}

TEST_F(CudaGradients, AccumulatesAndFolds) {
  for (const DType type : kActs) {
    for (const std::int64_t elems : {1, 5, 1027}) {
      for (const std::int64_t offset : {0, 1}) {
        const kernels::host::DTypeArray grad = numbers(type, elems, 2);
        const DeviceDTypeArray on_device(grad, offset);
        for (const bool first : {true, false}) {
          kernels::host::DTypeArray want = numbers(DType::kF32, elems, 3);
          DeviceDTypeArray sum(want, offset);
          accumulate(nullptr, static_cast<float*>(sum.data()), on_device.data(), type, first,
                     elems);
          host_->accumulate(static_cast<float*>(want.data()), grad.data(), type, first, elems);
          expect_same(sum.read(), want);
        }
        kernels::host::DTypeArray want =
            kernels::host::DTypeArray(type, kernels::host::normal_floats(elems, 4));
        DeviceDTypeArray into(want, offset);
        fold(nullptr, into.data(), on_device.data(), type, elems);
        host_->fold(want.data(), grad.data(), type, elems);
        expect_same(into.read(), want);
      }
    }
  }
}

TEST_F(CudaGradients, NormBlocksHaveTheHostsBits) {
  constexpr std::int64_t kElems = 30000;
  // Whole blocks and short ones, gaps, an empty one, one element, a longer one than before.
  const std::vector<Kernels::Block> blocks{
      {0, 4096},      {4096, 8192},   {8192, 9001},   {9001, 9001},   {9001, 9002},  {9002, 13098},
      {13100, 13117}, {13117, 13134}, {13134, 13200}, {20000, 24096}, {24096, 30000}};
  for (const DType type : kActs) {
    const kernels::host::DTypeArray grad(type, kernels::host::normal_floats(kElems, 5, 1e-3f));
    const DeviceDTypeArray on_device(grad);
    for (const DType round_to : kActs) {
      std::vector<double> want(blocks.size());
      host_->squared_norm_blocks(grad.data(), type, round_to, blocks, want.data());
      DeviceArray<double> partial(static_cast<std::int64_t>(blocks.size()));
      squared_norm_blocks(nullptr, on_device.data(), type, round_to, blocks, partial.data());
      const std::vector<double> got = partial.read();
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(double)), 0);
    }
  }
}

// More runs than one launch's parameters hold.
TEST_F(CudaGradients, NormOfManyScatteredBlocks) {
  constexpr std::int64_t kBlocks = 300;
  std::vector<Kernels::Block> blocks;
  for (std::int64_t i = 0; i < kBlocks; ++i) blocks.push_back({i * 20, i * 20 + i % 19});
  const kernels::host::DTypeArray grad(DType::kBF16, kernels::host::normal_floats(kBlocks * 20, 6));
  const DeviceDTypeArray on_device(grad);
  std::vector<double> want(blocks.size());
  host_->squared_norm_blocks(grad.data(), DType::kBF16, DType::kF32, blocks, want.data());
  DeviceArray<double> partial(kBlocks);
  squared_norm_blocks(nullptr, on_device.data(), DType::kBF16, DType::kF32, blocks, partial.data());
  EXPECT_EQ(partial.read(), want);
  squared_norm_blocks(nullptr, on_device.data(), DType::kBF16, DType::kF32, {}, partial.data());
  EXPECT_EQ(partial.read(), want);
}

// The fold adds in rank order, in fp32, and rounds once.
TEST_F(CudaGradients, FoldsRanksInTheirOrder) {
  constexpr std::int64_t kElems = 777;
  for (const DType type : kActs) {
    for (const int ranks : {1, 2, 5}) {
      std::vector<kernels::host::DTypeArray> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        parts.emplace_back(type,
                           kernels::host::normal_floats(kElems, 10u + static_cast<unsigned>(rank)));
      }
      kernels::host::DTypeArray want(type, kElems);
      for (std::size_t i = 0; i < kElems; ++i) {
        float sum = parts[0][i];
        for (int rank = 1; rank < ranks; ++rank) sum += parts[static_cast<std::size_t>(rank)][i];
        want.set(i, sum);
      }
      const std::size_t bytes = kElems * dtype_bytes(type);
      for (int own = 0; own < ranks; ++own) {
        Bytes gathered;
        for (const kernels::host::DTypeArray& part : parts) {
          gathered.insert(gathered.end(), part.bytes().begin(),
                          part.bytes().begin() + static_cast<std::ptrdiff_t>(bytes));
        }
        // The fold does not read the own rank's place.
        std::fill_n(gathered.begin() + own * static_cast<std::ptrdiff_t>(bytes), bytes, 0xff);
        const DeviceBytes others(gathered.data(), gathered.size());
        DeviceDTypeArray in_place(parts[static_cast<std::size_t>(own)]);
        fold_ranks(nullptr, {in_place.data(), others.data(), own, ranks}, in_place.data(), type,
                   kElems);
        expect_same(in_place.read(), want);
      }
    }
  }
}

TEST_F(CudaGradients, FoldsWideAndWholeNumbersOfRanks) {
  const DeviceArray<double> wide(std::vector<double>{0x1p60, 1.0, -0x1p60, 1.0});
  DeviceArray<double> own(std::vector<double>{-0x1p60, 2.0});
  fold_ranks(nullptr, {own.data(), wide.data(), 1, 2}, own.data(), DType::kF64, 2);
  EXPECT_EQ(own.read(), (std::vector<double>{0.0, 3.0}));
  const DeviceArray<std::int32_t> whole(std::vector<std::int32_t>{5, -7, 0, 0});
  DeviceArray<std::int32_t> mine(std::vector<std::int32_t>{-6, 9});
  fold_ranks(nullptr, {mine.data(), whole.data(), 1, 2}, mine.data(), DType::kI32, 2);
  EXPECT_EQ(mine.read(), (std::vector<std::int32_t>{-1, 2}));
  EXPECT_THROW(fold_ranks(nullptr, {mine.data(), whole.data(), 1, 2}, mine.data(), DType::kU8, 2),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
