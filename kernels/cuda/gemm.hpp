// Matrix products on the GPU, behind one small interface with two implementations: cuBLASLt where
// it is installed (gemm_cublaslt.hpp), and tensor-core kernels of our own (gemm_plain.hpp) anywhere
// else.
//
// Both are deterministic: a product's bits follow from its shape, dtypes and operands, and from the
// alignment of its pointers (always 256 bytes for whole tensors), never from the run. Sums are
// fp32 (no TF32 for fp32 operands), the bias is added in fp32, the result is rounded once.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Elements from row to row of the matrices as they are stored; 0: dense.
struct GemmStrides {
  std::int64_t a = 0, b = 0, c = 0;
};

// What becomes of a product's sums before they are rounded and stored as C.
enum class GemmActivation {
  kNone,
  kGelu,          // the sums, rounded, go to `x`, and their GELU (tanh) to C
  kGeluBackward,  // C = gelu'(x) * sum
};
struct GemmEpilogue {
  const void* bias = nullptr;  // [n], first added to each row
  GemmActivation activation = GemmActivation::kNone;
  void* x = nullptr;  // [m, n], dense, of C's dtype
};

// Not thread-safe: one backend serves the thread that owns the stream, as Kernels does.
class GemmBackend {
 public:
  virtual ~GemmBackend() = default;

  // Part of Kernels::arithmetic: what the bits of a product depend on ("cublaslt-13.1", "plain").
  virtual const char* name() const = 0;
  // What every product may use; one number for all shapes, so that the choice of an algorithm never
  // depends on what a plan has left.
  virtual std::uint64_t workspace_bytes() const = 0;
  // Queues C = epilogue(op(A) op(B)) on `stream`; arguments as gemm() below, which has checked them
  // and put the dense strides in. False where it cannot make such a product with an activation:
  // nothing is queued then, each time. Throws DeviceError.
  virtual bool multiply(StreamHandle stream, const GemmShape& shape, const GemmStrides& strides,
                        const void* a, const void* b, const GemmEpilogue& epilogue, void* c,
                        void* workspace) = 0;
};

// Whether a library makes GELU in a product's epilogue. It gains on Hopper and the B200s; on other
// GPUs others found a kernel of its own faster (llm.c pull request 653, sglang's 34350).
enum class GeluEpilogue { kFused, kApart };
inline GeluEpilogue gelu_epilogue_on(int compute_major) {
  return compute_major == 9 || compute_major == 10 ? GeluEpilogue::kFused : GeluEpilogue::kApart;
}

// cuBLASLt where the library can be opened, else the plain kernels. Loads the library and touches
// no GPU: the handle is made by the first product.
std::unique_ptr<GemmBackend> make_gemm_backend(GeluEpilogue gelu = GeluEpilogue::kFused);

// As Kernels::gemm, with strides besides. Pointers are device memory; tensors that begin at a
// multiple of 256 bytes, with rows of whole 16 bytes, are multiplied at full speed.
std::uint64_t gemm_workspace_bytes(const GemmBackend& backend, const GemmShape& shape);
void gemm(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
          const void* b, const void* bias, void* c, void* workspace,
          const GemmStrides& strides = {});

// As Kernels::gemm_gelu and gemm_gelu_backward: one product with an epilogue, or a product and a
// kernel.
void gemm_gelu(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
               const void* b, const void* bias, void* x, void* y, void* workspace);
void gemm_gelu_backward(StreamHandle stream, GemmBackend& backend, const GemmShape& shape,
                        const void* a, const void* b, const void* x, void* dx, void* workspace);

}  // namespace sluice::kernels::cuda
