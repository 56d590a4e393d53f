// Matrix products on the host. Each tile is one single-threaded oneDNN call.
//
// The fp32 path (any CPU) cuts the output into super-blocks, and those into tiles. For a
// super-block all threads widen its 16-bit panels of A and B to fp32 in the workspace, once. Each
// tile is then one single-threaded sgemm over the whole of k; it is rounded once on its way out,
// after the bias was added in fp32. fp32 operands are read in place. The native bf16 path
// (AVX512-BF16, AMX) has the same tiles, each one oneDNN matmul primitive; fp16 uses the fp32 path
// there too. The cut follows from the shape and k is never split, so the bits do not depend on the
// thread count.
//
// On 2 cores of an EPYC 9004 (AVX2 only), tiles reach or exceed the rate of oneDNN's own OpenMP
// team of two, for every tile from 64 x 64 up (measured by sluice bench gemm).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/host/matmul_cache.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// A factor as stored: row-major, with `stride` elements between rows. transposed: the stored matrix
// is the transpose of the factor.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  bool transposed = false;
  std::int64_t stride = 0;
};

// C[m, n] = A[m, k] B[k, n] (+ bias[n]), or C += A B if `accumulate` (fp32 C, no bias). lower_only:
// C is symmetric, operands are fp32; whether an element above the diagonal is computed or left
// alone depends only on the shape.
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

// Dense operands and output, as in Kernels::gemm.
Product product_of(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c);

class Gemm {
 public:
  // `parallel` must outlive this object. Throws InputError for kNative if oneDNN has no bf16
  // matmul.
  Gemm(const Parallel& parallel, Bf16Gemm mode);

  // Whether products of two bf16 factors run natively (then rounding dlogits to bf16 pays off).
  bool native_bf16() const { return native_bf16_; }

  // fp32 path: a panel for each 16-bit (or copied) operand, of at most 4 MiB, or k * 4 bytes for
  // each of 64 rows or columns if that is more; and, for 16-bit output, one fp32 tile of at most
  // 128 KiB per worker. Native path: oneDNN's scratchpad per worker. A function of shape and
  // threads(); ignores the pointers in `product`.
  std::uint64_t workspace_bytes(const Product& product) const;

  // workspace: 256-byte aligned. Several threads may call at once, each with its own workspace.
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
