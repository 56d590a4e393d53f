#include "base/dynamic_library.hpp"

#include <dlfcn.h>

namespace sluice {

DynamicLibrary DynamicLibrary::open(std::initializer_list<const char*> names) {
  DynamicLibrary library;
  for (const char* const name : names) {
    library.handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) {
      library.name_ = name;
      library.error_.clear();
      return library;
    }
    const char* const reason = ::dlerror();
    if (!library.error_.empty()) library.error_ += "; ";
    library.error_ += reason != nullptr ? reason : std::string(name) + " cannot be opened";
  }
  return library;
}

void* DynamicLibrary::find_symbol(const char* function_name) {
  void* const symbol = handle_ == nullptr ? nullptr : ::dlsym(handle_, function_name);
  if (symbol == nullptr && missing_.empty()) missing_ = function_name;
  return symbol;
}

}  // namespace sluice
