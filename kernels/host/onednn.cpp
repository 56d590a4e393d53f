// Calls into oneDNN on one thread, with IEEE arithmetic (see onednn.hpp for the reasons).
#include "kernels/host/onednn.hpp"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "base/error.hpp"
#include "kernels/host/ieee_arithmetic.hpp"

namespace sluice::kernels::host {

OneThread::OneThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}

OneThread::~OneThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

void sgemm(const SgemmShape& shape, const float* a, std::int64_t a_stride, const float* b,
           std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const OneThread alone;
  const IeeeArithmetic ieee;
  const dnnl_status_t status =
      dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n,
                 shape.k, shape.alpha, a, a_stride, b, b_stride, shape.beta, c, c_stride);
  if (status != dnnl_success) {
    throw DeviceError("oneDNN sgemm of " + std::to_string(shape.m) + " x " +
                      std::to_string(shape.n) + " x " + std::to_string(shape.k) +
                      " failed with status " + std::to_string(static_cast<int>(status)));
  }
}

bool onednn_has_fast_bf16() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return isa == dnnl_cpu_isa_avx512_core_bf16 || isa == dnnl_cpu_isa_avx512_core_amx;
}

bool onednn_has_bf16() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return onednn_has_fast_bf16() || isa == dnnl_cpu_isa_avx512_core ||
         isa == dnnl_cpu_isa_avx512_core_vnni;
}

namespace {

const char* isa_name(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "other";
  }
}

}  // namespace

std::string onednn_version_and_isa() {
  const dnnl_version_t* version = dnnl_version();
  return "onednn-" + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) + "/" + isa_name(dnnl_get_effective_cpu_isa());
}

}  // namespace sluice::kernels::host
