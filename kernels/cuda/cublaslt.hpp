// The functions of cuBLASLt that we call, found at run time: one binary starts on a machine that
// has nothing of CUDA installed.
#pragma once

#include <cublasLt.h>

#include <optional>

namespace sluice::kernels::cuda {

// Named as in cublasLt.h, without the prefix. Tests fill in functions of their own.
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

// Opens libcublasLt.so.13, else .so.12 (what we call is the same in both); nothing where neither is
// installed. The library stays loaded. Throws DeviceError for one that lacks a function.
std::optional<CublasLt> open_cublaslt();

}  // namespace sluice::kernels::cuda
