// A cuBLASLt that multiplies on the CPU, as its documentation says: column-major layouts, TRANSA
// and TRANSB, epilogues with a bias along the rows and GELU (tanh), one algorithm handed from the
// heuristic to the product. It counts calls and live descriptors, keeps the last request, and fails
// the Nth call.
#pragma once

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/cuda/cublaslt.hpp"
#include "tests/contract/activations_contract.hpp"

namespace sluice::kernels::cuda {

struct FakeCublasLt {
  struct Operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
    void* aux = nullptr;
    std::int64_t aux_stride = 0;
  };
  struct Layout {
    cudaDataType_t type;
    std::uint64_t rows, cols;
    std::int64_t stride;
  };
  struct Preference {
    std::uint64_t workspace_bytes = 0;
    std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    std::uint32_t alignment[4] = {};
  };

  int calls = 0;
  int failing_call = 0;  // counted from 1; 0: none
  int live = 0;          // descriptors and handles
  int heuristics = 0, products = 0;
  bool has_algorithm = true;
  bool has_activations = true;
  int activations = 0;  // of the products
  Preference asked;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;

  // The one that the functions of table() act on; set by the constructor.
  static FakeCublasLt*& current() {
    static FakeCublasLt* fake = nullptr;
    return fake;
  }
  FakeCublasLt() { current() = this; }
  FakeCublasLt(const FakeCublasLt&) = delete;
  FakeCublasLt& operator=(const FakeCublasLt&) = delete;
  ~FakeCublasLt() { current() = nullptr; }

  static CublasLt table();

 private:
  static cublasStatus_t count() {
    FakeCublasLt& fake = *current();
    return ++fake.calls == fake.failing_call ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
  }
  template <class Handle, class Value>
  static cublasStatus_t make(Handle* handle, Value value) {
    if (const cublasStatus_t status = count(); status != CUBLAS_STATUS_SUCCESS) return status;
    *handle = reinterpret_cast<Handle>(new Value(value));
    ++current()->live;
    return CUBLAS_STATUS_SUCCESS;
  }
  template <class Value, class Handle>
  static cublasStatus_t destroy(Handle handle) {
    delete reinterpret_cast<Value*>(handle);
    --current()->live;
    return CUBLAS_STATUS_SUCCESS;
  }
  // Accepts only the size that the documentation gives for the attribute.
  template <class Value>
  static cublasStatus_t read(Value& to, const void* from, std::size_t bytes) {
    if (bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, from, bytes);
    return count();
  }
  static bool has_aux(cublasLtEpilogue_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
  }
  static double element(const void* data, const Layout& layout, std::uint64_t row,
                        std::uint64_t col) {
    return number(data, layout.type, col * static_cast<std::uint64_t>(layout.stride) + row);
  }
  static double number(const void* data, cudaDataType_t type, std::uint64_t at) {
    if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
    if (type == CUDA_R_16BF) return to_float(static_cast<const bf16*>(data)[at]);
    return to_float(static_cast<const f16*>(data)[at]);
  }
  static void store(void* data, cudaDataType_t type, std::uint64_t at, double value) {
    const auto narrow = static_cast<float>(value);
    if (type == CUDA_R_32F) static_cast<float*>(data)[at] = narrow;
    if (type == CUDA_R_16BF) static_cast<bf16*>(data)[at] = bf16_from_float(narrow);
    if (type == CUDA_R_16F) static_cast<f16*>(data)[at] = f16_from_float(narrow);
  }

  static cublasStatus_t set_operation(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                      const void*, std::size_t);
  static cublasStatus_t set_preference(cublasLtMatmulPreference_t,
                                       cublasLtMatmulPreferenceAttributes_t, const void*,
                                       std::size_t);
  static cublasStatus_t choose(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                               cublasLtMatmulHeuristicResult_t*, int*);
  static cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                 cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                                 const void*, const void*, cublasLtMatrixLayout_t, void*,
                                 cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*,
                                 std::size_t, cudaStream_t);
};

inline cublasStatus_t FakeCublasLt::set_operation(cublasLtMatmulDesc_t handle,
                                                  cublasLtMatmulDescAttributes_t attribute,
                                                  const void* value, std::size_t bytes) {
  auto& operation = *reinterpret_cast<Operation*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return read(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return read(operation.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return read(operation.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return read(operation.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return read(operation.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return read(operation.aux_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

inline cublasStatus_t FakeCublasLt::set_preference(cublasLtMatmulPreference_t handle,
                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                   const void* value, std::size_t bytes) {
  auto& preference = *reinterpret_cast<Preference*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return read(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return read(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return read(preference.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return read(preference.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return read(preference.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return read(preference.alignment[3], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

inline cublasStatus_t FakeCublasLt::choose(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                           cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                           cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                           cublasLtMatmulPreference_t preference, int wanted,
                                           cublasLtMatmulHeuristicResult_t* results, int* found) {
  if (const cublasStatus_t status = count(); status != CUBLAS_STATUS_SUCCESS) return status;
  FakeCublasLt& fake = *current();
  fake.asked = *reinterpret_cast<Preference*>(preference);
  const bool activation = has_aux(reinterpret_cast<const Operation*>(operation)->epilogue);
  *found = fake.has_algorithm && wanted > 0 && (fake.has_activations || !activation) ? 1 : 0;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].algo.data[0] = static_cast<std::uint64_t>(++fake.heuristics);
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t FakeCublasLt::multiply(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t operation_handle, const void* alpha,
    const void* a, cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
    const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
    std::size_t workspace_bytes, cudaStream_t stream) {
  if (const cublasStatus_t status = count(); status != CUBLAS_STATUS_SUCCESS) return status;
  FakeCublasLt& fake = *current();
  const auto& operation = *reinterpret_cast<Operation*>(operation_handle);
  const auto& left = *reinterpret_cast<Layout*>(a_layout);
  const auto& right = *reinterpret_cast<Layout*>(b_layout);
  const auto& to = *reinterpret_cast<Layout*>(d_layout);
  const bool across = operation.transpose_a == CUBLAS_OP_T;
  const bool down = operation.transpose_b == CUBLAS_OP_T;
  const std::uint64_t depth = across ? left.rows : left.cols;
  // Products that the library would refuse, and those that we never mean.
  const bool fits = (across ? left.cols : left.rows) == to.rows &&
                    (down ? right.rows : right.cols) == to.cols &&
                    (down ? right.cols : right.rows) == depth;
  if (!fits || handle == nullptr || c != d || algorithm->data[0] == 0 ||
      *static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f ||
      workspace_bytes < fake.asked.workspace_bytes || operation.compute != CUBLAS_COMPUTE_32F ||
      operation.scale != CUDA_R_32F) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool bias = operation.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                    operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  if (bias && operation.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const bool aux = has_aux(operation.epilogue);
  if (aux && (operation.aux == nullptr || operation.aux_stride % 8 != 0 ||
              operation.aux_stride < static_cast<std::int64_t>(to.rows))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (std::uint64_t col = 0; col < to.cols; ++col) {
    for (std::uint64_t row = 0; row < to.rows; ++row) {
      double sum = bias ? number(operation.bias, to.type, row) : 0.0;
      for (std::uint64_t p = 0; p < depth; ++p) {
        sum += (across ? element(a, left, p, row) : element(a, left, row, p)) *
               (down ? element(b, right, col, p) : element(b, right, p, col));
      }
      if (aux) {
        const std::uint64_t at = col * static_cast<std::uint64_t>(operation.aux_stride) + row;
        if (operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
          sum *= testing::slope_at(testing::gelu_in_fp64, number(operation.aux, to.type, at));
        } else {
          store(operation.aux, to.type, at, sum);
          sum = testing::gelu_in_fp64(sum);
        }
      }
      store(d, to.type, col * static_cast<std::uint64_t>(to.stride) + row, sum);
    }
  }
  ++fake.products;
  fake.activations += aux ? 1 : 0;
  fake.stream = stream;
  fake.workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}

inline CublasLt FakeCublasLt::table() {
  CublasLt table;
  table.get_version = [] { return std::size_t{130100}; };
  table.get_status_string = [](cublasStatus_t) { return "a fake failure"; };
  table.create = [](cublasLtHandle_t* handle) { return make(handle, int{0}); };
  table.destroy = [](cublasLtHandle_t handle) { return destroy<int>(handle); };
  table.matmul = multiply;
  table.matmul_algo_get_heuristic = choose;
  table.matmul_desc_create = [](cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                cudaDataType_t scale) {
    return make(handle, Operation{.compute = compute, .scale = scale});
  };
  table.matmul_desc_destroy = [](cublasLtMatmulDesc_t handle) {
    return destroy<Operation>(handle);
  };
  table.matmul_desc_set_attribute = set_operation;
  table.matrix_layout_create = [](cublasLtMatrixLayout_t* handle, cudaDataType type,
                                  std::uint64_t rows, std::uint64_t cols, std::int64_t stride) {
    return make(handle, Layout{type, rows, cols, stride});
  };
  table.matrix_layout_destroy = [](cublasLtMatrixLayout_t handle) {
    return destroy<Layout>(handle);
  };
  table.matmul_preference_create = [](cublasLtMatmulPreference_t* handle) {
    return make(handle, Preference());
  };
  table.matmul_preference_destroy = [](cublasLtMatmulPreference_t handle) {
    return destroy<Preference>(handle);
  };
  table.matmul_preference_set_attribute = set_preference;
  return table;
}

}  // namespace sluice::kernels::cuda
