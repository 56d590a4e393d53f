// The only entry to oneDNN: one thread per call.
//
// oneDNN's results change with the size of its team, and an OpenMP team spins between calls while
// other lanes need the cores. Therefore every call runs on the calling thread; kernels/host cuts
// the output by shape and runs the pieces on oneTBB.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::kernels::host {

// RAII: oneDNN calls and primitives created on this thread use this thread alone. It changes this
// thread's OpenMP setting; the destructor restores it.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// C[m, n] = alpha op(A) op(B) + beta C, row-major fp32; *_stride is the distance between stored
// rows in elements. A transposed A is stored [k, m], a transposed B [n, k]. Throws DeviceError.
//
// Uses dnnl_sgemm in place of the matmul primitive: below AVX-512 the primitive (gemm:jit in oneDNN
// 2.6) ends in the same driver, and dnnl_sgemm needs no primitive per shape. It packs panels of A
// and B in heap memory of its own, at most a few MiB per thread, freed before it returns.
struct SgemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f, beta = 0.0f;
};
void sgemm(const SgemmShape& shape, const float* a, std::int64_t a_stride, const float* b,
           std::int64_t b_stride, float* c, std::int64_t c_stride);

// Whether the CPU multiplies bf16 (AVX512-BF16 or AMX) and oneDNN uses that.
bool onednn_has_fast_bf16();
// Whether oneDNN has any bf16 matmul (it emulates bf16 on plain AVX-512 and refuses it below).
bool onednn_has_bf16();
// Run-time version and the instruction set of oneDNN's kernels, such as "onednn-2.6.3/avx2".
std::string onednn_version_and_isa();

}  // namespace sluice::kernels::host
