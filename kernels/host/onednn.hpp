// The only way into oneDNN: one thread per call.
//
// oneDNN's results change with the size of its team, and an OpenMP team spins between calls while
// other lanes want the cores. So every call runs on the thread that makes it; kernels/host cuts the
// output by shape and runs the pieces on oneTBB.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::kernels::host {

// While one lives, oneDNN calls (and primitives created) on this thread use this thread alone.
// The OpenMP setting it replaces is this thread's own and comes back with the destructor.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// C[m, n] = alpha op(A) op(B) + beta C, row-major fp32; *_stride is elements between stored rows.
// op transposes where asked: A is then stored [k, m], B [n, k]. Throws DeviceError.
//
// dnnl_sgemm and not the matmul primitive: below AVX-512 the primitive (gemm:jit in oneDNN 2.6)
// ends in the same driver, and this needs no primitive per shape. It packs panels of A and B in
// heap memory of its own, at most a few MiB per thread, freed before it returns.
struct SgemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f, beta = 0.0f;
};
void sgemm(const SgemmShape& shape, const float* a, std::int64_t a_stride, const float* b,
           std::int64_t b_stride, float* c, std::int64_t c_stride);

// True where the CPU multiplies bf16 (AVX512-BF16 or AMX) and oneDNN will use it.
bool onednn_has_fast_bf16();
// True where oneDNN has any bf16 matmul (it emulates bf16 on plain AVX-512, and refuses below).
bool onednn_has_bf16();
// "onednn-2.6.3/avx2": the version at run time and the instruction set it picks kernels for.
std::string onednn_version_and_isa();

}  // namespace sluice::kernels::host
