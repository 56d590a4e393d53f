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

namespace sluice::cuda {

// Not thread-safe: one backend serves the thread that owns the stream, as Kernels does.
class GemmBackend {
 public:
  virtual ~GemmBackend() = default;

  // Part of Kernels::arithmetic: what the bits of a product depend on ("cublaslt-13.1", "plain").
  virtual const char* name() const = 0;
  // What every product may use; one number for all shapes, so that the choice of an algorithm never
  // depends on what a plan has left.
  virtual std::uint64_t workspace_bytes() const = 0;
  // Queues C = op(A) op(B) (+ bias) on `stream`; arguments as Kernels::gemm, checked by gemm()
  // below. Throws DeviceError.
  virtual void multiply(StreamHandle stream, const GemmShape& shape, const void* a, const void* b,
                        const void* bias, void* c, void* workspace) = 0;
};

// cuBLASLt where the library can be opened, else the plain kernels. Loads the library and touches
// no GPU: the handle is made by the first product.
std::unique_ptr<GemmBackend> make_gemm_backend();

// As Kernels::gemm. Pointers are device memory, aligned to 16 bytes (256 for full speed).
std::uint64_t gemm_workspace_bytes(const GemmBackend& backend, const GemmShape& shape);
void gemm(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
          const void* b, const void* bias, void* c, void* workspace);

}  // namespace sluice::cuda
