// Looks up cuBLASLt with dlopen. CUDA 13 is tried before CUDA 12. The library is never closed,
// since its functions may be in use until the process ends.
#include "kernels/cuda/cublaslt.hpp"

#include <dlfcn.h>

#include <string>

#include "base/error.hpp"

namespace sluice::kernels::cuda {
namespace {

struct Library {
  const char* name;
  void* handle;
};

template <class Function>
void find(const Library& library, const char* name, Function& function) {
  void* const address = ::dlsym(library.handle, name);
  if (address == nullptr) {
    throw DeviceError(std::string(library.name) + " has no function " + name +
                      "; install the cuBLASLt of CUDA 12 or 13");
  }
  function = reinterpret_cast<Function>(address);
}

CublasLt table_of(const Library& library) {
  CublasLt table;
  find(library, "cublasLtGetVersion", table.get_version);
  find(library, "cublasLtGetStatusString", table.get_status_string);
  find(library, "cublasLtCreate", table.create);
  find(library, "cublasLtDestroy", table.destroy);
  find(library, "cublasLtMatmul", table.matmul);
  find(library, "cublasLtMatmulAlgoGetHeuristic", table.matmul_algo_get_heuristic);
  find(library, "cublasLtMatmulDescCreate", table.matmul_desc_create);
  find(library, "cublasLtMatmulDescDestroy", table.matmul_desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", table.matmul_desc_set_attribute);
  find(library, "cublasLtMatrixLayoutCreate", table.matrix_layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", table.matrix_layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", table.matmul_preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", table.matmul_preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", table.matmul_preference_set_attribute);
  return table;
}

}  // namespace

std::optional<CublasLt> open_cublaslt() {
  for (const char* const name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return table_of({name, handle});
  }
  return std::nullopt;
}

}  // namespace sluice::kernels::cuda
