// Matrix products on the GPU: one small interface with two implementations. cuBLASLt is used if it
// is installed (gemm_cublaslt.hpp), and our own tensor-core kernels (gemm_plain.hpp) otherwise.
//
// Both are deterministic. The bits of a product follow from its shape, dtypes and operands, and
// from the alignment of its pointers (always 256 bytes for whole tensors), never from the run. Sums
// are fp32 (no TF32 for fp32 operands), the bias is added in fp32, and the result is rounded once.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Elements between rows of the matrices as stored; 0: dense.
struct GemmStrides {
  std::int64_t a = 0, b = 0, c = 0;
};

// The function applied to a product's sums before they are rounded and stored as C.
enum class GemmActivation {
  kNone,
  kGelu,          // the sums, rounded, go to `x`, and their GELU (tanh) to C
  kGeluBackward,  // C = gelu'(x) * sum
};
struct GemmEpilogue {
  const void* bias = nullptr;  // [n], added to each row first
  GemmActivation activation = GemmActivation::kNone;
  void* x = nullptr;  // [m, n], dense, with C's dtype
};

// Not thread-safe; used by the thread that owns the stream, like Kernels.
class GemmBackend {
 public:
  virtual ~GemmBackend() = default;

  // Part of Kernels::arithmetic; names the source of a product's bits ("cublaslt-13.1", "plain").
  virtual const char* name() const = 0;
  // Workspace that every product may use. One number for all shapes, so that the choice of an
  // algorithm never depends on the memory that a plan has left.
  virtual std::uint64_t workspace_bytes() const = 0;
  // Whether products of this dtype may compute an activation before they round.
  virtual bool fuses_activations(DType) const { return false; }
  // Queues C = epilogue(op(A) op(B)) on `stream`. Arguments as in gemm() below, which has checked
  // them and filled in dense strides. Returns false and queues nothing if the backend does not
  // support the activation for such a product; the answer is always the same. Throws DeviceError.
  virtual bool multiply(StreamHandle stream, const GemmShape& shape, const GemmStrides& strides,
                        const void* a, const void* b, const GemmEpilogue& epilogue, void* c,
                        void* workspace) = 0;
};

// Whether the library computes GELU in a product's epilogue. Fusing is faster on Hopper and the
// B200 class. On other GPUs a separate kernel was found faster (llm.c pull request 653, sglang's
// 34350).
enum class GeluEpilogue { kFused, kApart };
inline GeluEpilogue gelu_epilogue_on(int compute_major) {
  return compute_major == 9 || compute_major == 10 ? GeluEpilogue::kFused : GeluEpilogue::kApart;
}

// cuBLASLt if the library can be opened, otherwise the plain kernels. Loads the library but uses no
// GPU: the first product creates the handle.
std::unique_ptr<GemmBackend> make_gemm_backend(GeluEpilogue gelu = GeluEpilogue::kFused);

// As Kernels::gemm, with optional strides. Pointers are device memory. Tensors that begin at a
// multiple of 256 bytes and have rows of whole 16 bytes run at full speed.
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
