#include "kernels/cuda/gemm.hpp"

#include <dlfcn.h>

#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/gemm_cublaslt.hpp"
#include "kernels/cuda/gemm_plain.hpp"

namespace sluice::cuda {
namespace {

void check(const GemmShape& shape) {
  SLUICE_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0);
  SLUICE_CHECK(is_act_dtype(shape.dtype));
  SLUICE_CHECK(shape.output == shape.dtype || shape.output == DType::kF32);
}

}  // namespace

std::unique_ptr<GemmBackend> make_gemm_backend() {
  if (const auto functions = open_cublaslt()) return make_cublaslt_gemm(*functions);
  const char* const why = ::dlerror();
  log(LogLevel::kWarning, "products are made by kernels of our own, which are slower: cuBLASLt " +
                              (why != nullptr ? std::string("cannot be opened: ") + why
                                              : std::string("was not found")));
  return make_plain_gemm();
}

std::uint64_t gemm_workspace_bytes(const GemmBackend& backend, const GemmShape& shape) {
  check(shape);
  return backend.workspace_bytes();
}

void gemm(StreamHandle stream, GemmBackend& backend, const GemmShape& shape, const void* a,
          const void* b, const void* bias, void* c, void* workspace, const GemmStrides& strides) {
  check(shape);
  const GemmStrides dense{.a = shape.transpose_a ? shape.m : shape.k,
                          .b = shape.transpose_b ? shape.k : shape.n,
                          .c = shape.n};
  const GemmStrides given{.a = strides.a == 0 ? dense.a : strides.a,
                          .b = strides.b == 0 ? dense.b : strides.b,
                          .c = strides.c == 0 ? dense.c : strides.c};
  SLUICE_CHECK(given.a >= dense.a && given.b >= dense.b && given.c >= dense.c);
  backend.multiply(stream, shape, given, a, b, bias, c, workspace);
}

}  // namespace sluice::cuda
