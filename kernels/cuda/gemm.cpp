// The choice of the GEMM backend, argument checks, and the fallback for GELU: if the backend does
// not fuse the activation, a product and an elementwise kernel give the same result.
#include "kernels/cuda/gemm.hpp"

#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "kernels/cuda/activations.hpp"
#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/gemm_cublaslt.hpp"
#include "kernels/cuda/gemm_plain.hpp"

namespace sluice::kernels::cuda {
namespace {

void check(const GemmShape& shape) {
  SLUICE_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0);
  SLUICE_CHECK(is_act_dtype(shape.dtype));
  SLUICE_CHECK(shape.output == shape.dtype || shape.output == DType::kF32);
}

GemmStrides dense_strides(const GemmShape& shape) {
  return {.a = shape.transpose_a ? shape.m : shape.k,
          .b = shape.transpose_b ? shape.k : shape.n,
          .c = shape.n};
}

}  // namespace

std::unique_ptr<GemmBackend> make_gemm_backend(GeluEpilogue gelu) {
  std::string why;
  if (const auto functions = open_cublaslt(&why)) return make_cublaslt_gemm(*functions, gelu);
  log(LogLevel::kWarning,
      "products use our own kernels, which are slower: cuBLASLt cannot be opened: " + why);
  return make_plain_gemm();
}

std::uint64_t gemm_workspace_bytes(const GemmBackend& backend, const GemmShape& shape) {
  check(shape);
  return backend.workspace_bytes();
}

void gemm(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
          const void* b, const void* bias, void* c, void* workspace, const GemmStrides& strides) {
  check(shape);
  const GemmStrides dense = dense_strides(shape);
  const GemmStrides given{.a = strides.a == 0 ? dense.a : strides.a,
                          .b = strides.b == 0 ? dense.b : strides.b,
                          .c = strides.c == 0 ? dense.c : strides.c};
  SLUICE_CHECK(given.a >= dense.a && given.b >= dense.b && given.c >= dense.c);
  SLUICE_CHECK(backend.multiply(stream, shape, given, a, b, {.bias = bias}, c, workspace));
}

void gemm_gelu(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
               const void* b, const void* bias, void* x, void* y, void* workspace) {
  check(shape);
  SLUICE_CHECK(shape.output == shape.dtype);
  const GemmEpilogue epilogue{.bias = bias, .activation = GemmActivation::kGelu, .x = x};
  if (backend.multiply(stream, shape, dense_strides(shape), a, b, epilogue, y, workspace)) return;
  gemm(stream, backend, shape, a, b, bias, x, workspace);
  gelu_forward(stream, x, y, shape.m * shape.n, shape.output);
}

void gemm_gelu_backward(StreamHandle stream, GemmBackend& backend, const GemmShape& shape,
                        const void* a, const void* b, const void* x, void* dx, void* workspace) {
  check(shape);
  SLUICE_CHECK(shape.output == shape.dtype);
  const GemmEpilogue epilogue{.activation = GemmActivation::kGeluBackward,
                              .x = const_cast<void*>(x)};  // only read
  if (backend.multiply(stream, shape, dense_strides(shape), a, b, epilogue, dx, workspace)) return;
  gemm(stream, backend, shape, a, b, nullptr, dx, workspace);
  gelu_backward(stream, dx, x, dx, shape.m * shape.n, shape.output);
}

}  // namespace sluice::kernels::cuda
