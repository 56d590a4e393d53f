#include "base/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The program or the library that contains this code; empty: unknown.
std::string own_file() {
  Dl_info info{};
  link_map* map = nullptr;
  const auto* const code = reinterpret_cast<const void*>(&own_file);
  void** const extra = reinterpret_cast<void**>(&map);
  if (::dladdr1(code, &info, extra, RTLD_DL_LINKMAP) == 0 || map == nullptr) return {};
  std::error_code unknown;
  // The linker has no name for the program.
  const fs::path file = *map->l_name == '\0' ? fs::path("/proc/self/exe") : fs::path(map->l_name);
  return fs::canonical(file, unknown).string();
}

}  // namespace

DynamicLibrary DynamicLibrary::open(std::initializer_list<const char*> names) {
  DynamicLibrary library;
  const std::vector<std::string> directories = nvidia_package_directories(own_file());
  const auto found = [&library](const std::string& path) {
    library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return library.handle_ != nullptr;
  };
  for (const char* const name : names) {
    bool opened = found(name);
    const char* const reason = opened ? nullptr : ::dlerror();
    const std::string error = reason != nullptr ? reason : std::string(name) + " cannot be opened";
    for (const std::string& directory : directories) {
      opened = opened || found(directory + "/" + name);
    }
    if (opened) {
      library.name_ = name;
      library.error_.clear();
      return library;
    }
    if (!library.error_.empty()) library.error_ += "; ";
    library.error_ += error;
  }
  return library;
}

void* DynamicLibrary::find_symbol(const char* function_name) {
  void* const symbol = handle_ == nullptr ? nullptr : ::dlsym(handle_, function_name);
  if (symbol == nullptr && missing_.empty()) missing_ = function_name;
  return symbol;
}

std::vector<std::string> nvidia_package_directories(const std::string& file) {
  std::vector<std::string> directories;
  const fs::path package = fs::path(file).parent_path().parent_path();
  if (package.filename() != "sluice") return directories;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(package.parent_path() / "nvidia", absent)) {
    fs::path libraries = entry.path() / "lib";
    if (fs::is_directory(libraries, absent)) directories.push_back(libraries.string());
  }
  std::sort(directories.begin(), directories.end());
  return directories;
}

}  // namespace sluice
