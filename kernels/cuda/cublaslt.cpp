// Looks up cuBLASLt at run time. CUDA 13 is tried before CUDA 12. The library is never closed,
// since its functions may be in use until the process ends.
#include "kernels/cuda/cublaslt.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace sluice::kernels::cuda {
namespace {

CublasLt table_of(DynamicLibrary& library) {
  CublasLt table;
  library.find("cublasLtGetVersion", table.get_version);
  library.find("cublasLtGetStatusString", table.get_status_string);
  library.find("cublasLtCreate", table.create);
  library.find("cublasLtDestroy", table.destroy);
  library.find("cublasLtMatmul", table.matmul);
  library.find("cublasLtMatmulAlgoGetHeuristic", table.matmul_algo_get_heuristic);
  library.find("cublasLtMatmulDescCreate", table.matmul_desc_create);
  library.find("cublasLtMatmulDescDestroy", table.matmul_desc_destroy);
  library.find("cublasLtMatmulDescSetAttribute", table.matmul_desc_set_attribute);
  library.find("cublasLtMatrixLayoutCreate", table.matrix_layout_create);
  library.find("cublasLtMatrixLayoutDestroy", table.matrix_layout_destroy);
  library.find("cublasLtMatmulPreferenceCreate", table.matmul_preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", table.matmul_preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", table.matmul_preference_set_attribute);
  if (!library.missing().empty()) {
    throw DeviceError(library.name() + " has no function " + library.missing() +
                      "; install the cuBLASLt of CUDA 12 or 13");
  }
  return table;
}

}  // namespace

std::optional<CublasLt> open_cublaslt(std::string* why) {
  DynamicLibrary library = DynamicLibrary::open({"libcublasLt.so.13", "libcublasLt.so.12"});
  if (library.is_open()) return table_of(library);
  if (why != nullptr) *why = library.error();
  return std::nullopt;
}

}  // namespace sluice::kernels::cuda
