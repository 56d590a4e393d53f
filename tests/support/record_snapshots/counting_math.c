/* The values that PyTorch reads back from cuBLAS, cuBLASLt and cuDNN before it launches: a handle,
   one algorithm, a version. All other functions of those libraries succeed and do nothing
   (build_libraries.py makes them). Pointers are void, for the libraries' own headers are not
   needed. */
#include <stddef.h>

int cublasCreate_v2(void** handle) {
  static int context;
  *handle = &context;
  return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c,
                                   void* d, void* preference, int asked, void* results,
                                   int* found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked;
  (void)results; /* zeroed by the caller: status 0, no workspace */
  *found = 1;
  return 0;
}

size_t cudnnGetVersion(void) {
  return 90100;
}
