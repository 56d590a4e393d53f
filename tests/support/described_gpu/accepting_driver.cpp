// A driver that takes every module for loaded and executes nothing. Those of its functions that
// need more than to succeed; CMakeLists.txt adds the rest, and reads this file for it: a line each
// begins with "int cu".
#include <cstdint>

namespace {

constexpr int kNotThere = 34;  // CUDA_ERROR_STUB_LIBRARY

int make_handle(void** handle) {
  static char thing;
  *handle = &thing;
  return 0;
}

}  // namespace

extern "C" {

// NVRTC calls these; it would look for a GPU by private ways.
int cuInit(unsigned) {
  return kNotThere;
}
int cuGetExportTable(const void**, const void*) {
  return kNotThere;
}

int cuLibraryLoadData(void** library) {
  return make_handle(library);
}
int cuLibraryGetKernel(void** kernel) {
  return make_handle(kernel);
}
int cuLibraryGetModule(void** module) {
  return make_handle(module);
}
int cuKernelGetFunction(void** function) {
  return make_handle(function);
}
int cuModuleLoadData(void** module) {
  return make_handle(module);
}
int cuModuleGetFunction(void** function) {
  return make_handle(function);
}

int cuFuncGetAttribute(int* value) {
  return *value = 64, 0;
}
int cuKernelGetAttribute(int* value) {
  return *value = 64, 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) {
  return *blocks = 1, 0;
}

}  // extern "C"
