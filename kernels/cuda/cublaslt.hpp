// The functions of cuBLASLt that Sluice calls, looked up at run time. One binary thus starts on a
// machine without any CUDA installation.
#pragma once

#include <cublasLt.h>

#include <optional>
#include <string>

namespace sluice::kernels::cuda {

// Named as in cublasLt.h, without the prefix. Tests supply functions of their own.
struct CublasLt {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&::cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
};

// Opens libcublasLt.so.13 or .so.12 (the functions used are the same in both). Returns nothing if
// neither is installed. The library stays loaded. Throws DeviceError if it lacks a function.
std::optional<CublasLt> open_cublaslt(std::string* why = nullptr);

}  // namespace sluice::kernels::cuda
