// Matrix products on the host, over oneDNN called one thread at a time.
//
// Via fp32 (any CPU): the output is cut into super-blocks, and those into tiles. For a super-block
// the 16-bit panels of A and B that it needs are widened to fp32 in the workspace (once, by all
// threads), then each tile is one single-threaded sgemm over the whole of k, and is rounded once on
// its way out, with the bias added in fp32 before. fp32 operands are read where they are. Native
// bf16 (AVX512-BF16, AMX): the same tiles, each one oneDNN matmul primitive; fp16 goes via fp32
// there too. The cut follows from the shape, k is never split, so the bits do not depend on the
// thread count.
//
// Measured with 2 cores of an EPYC 9004 (AVX2 only): tiles reach the rate of oneDNN's own OpenMP
// team of two or pass it, at any tile from 64 x 64 up (tools: sluice bench gemm).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/host/matmul_cache.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// A factor as stored: row-major, `stride` elements from row to row. transposed: the stored matrix
// is the transpose of the factor.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  bool transposed = false;
  std::int64_t stride = 0;
};

// C[m, n] = A[m, k] B[k, n] (+ bias[n]); or C += A B where `accumulate` (C fp32, no bias).
// lower_only: of a symmetric C; fp32 operands. Elements above the diagonal are computed or left as
// they were, by the shape alone.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Operand a, b;
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
  void* c = nullptr;
  DType c_dtype = DType::kF32;
  std::int64_t c_stride = 0;
  bool accumulate = false;
  bool lower_only = false;
};

// Dense operands and output, as Kernels::gemm has them.
Product product_of(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c);

class Gemm {
 public:
  // `parallel` outlives this. Throws InputError for kNative where oneDNN has no bf16 matmul.
  Gemm(const Parallel& parallel, Bf16Gemm mode);

  // Products of two bf16 factors run natively (and rounding dlogits to bf16 pays off).
  bool native_bf16() const { return native_bf16_; }

  // Via fp32: for each 16-bit (or copied) operand a panel of at most max(4 MiB, 64 rows (or
  // columns)
  // * k * 4 bytes), and, for 16-bit output, one fp32 tile of at most 128 KiB per worker. Native:
  // oneDNN's scratchpad per worker. Pointers in `product` are not looked at. A function of shape
  // and threads().
  std::uint64_t workspace_bytes(const Product& product) const;

  // workspace: 256-byte aligned. Any number of threads may call at once, each with its own.
  void run(const Product& product, void* workspace) const;

 private:
  bool runs_native(const Product& product) const;
  void run_via_f32(const Product& product, std::byte* workspace) const;
  std::uint64_t scratchpad_bytes(const Product& product) const;
  void run_native(const Product& product, std::byte* workspace) const;

  const Parallel& parallel_;
  bool native_bf16_ = false;
  std::unique_ptr<MatmulCache> matmuls_;  // native only
};

}  // namespace sluice::kernels::host
