// Shared libraries that a program finds at run time: it starts on a machine that lacks them.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace sluice {

// An opened library and the search for its functions. Not owning: a library stays loaded to the end
// of the process, since it may have threads of its own.
//
//   DynamicLibrary library = DynamicLibrary::open({"libfoo.so.2", "libfoo.so.1"});
//   if (!library.is_open()) …            // error() says why
//   library.find("foo_begin", table.begin);
//   library.find("foo_end", table.end);
//   if (!library.missing().empty()) …    // the name of the first function that it lacks
class DynamicLibrary {
 public:
  // Opens the first of `names` that the dynamic linker finds, or that NVIDIA's Python packages have
  // where this code came in a wheel (nvidia_package_directories).
  static DynamicLibrary open(std::initializer_list<const char*> names);

  bool is_open() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }
  const std::string& name() const { return name_; }    // of the one that was opened
  const std::string& error() const { return error_; }  // the linker's words when none was opened

  // Points `function` to the library's function of this name; to null when there is none.
  template <class Function>
  void find(const char* function_name, Function& function) {
    void* const symbol = find_symbol(function_name);
    // dlsym gives an object pointer; POSIX promises that it holds a function's address.
    static_assert(sizeof(function) == sizeof(symbol));
    std::memcpy(&function, &symbol, sizeof(symbol));
  }
  // The first function that find() did not find; empty: it found all.
  const std::string& missing() const { return missing_; }

 private:
  void* find_symbol(const char* function_name);

  void* handle_ = nullptr;
  std::string name_;
  std::string error_;
  std::string missing_;
};

// The directories of libraries of NVIDIA's Python packages (nvidia-cublas and others), for a file
// of our wheel: SITE/nvidia/*/lib for SITE/sluice/bin/sluice or SITE/sluice/lib/libsluice.so.1.
// Sorted; empty elsewhere.
std::vector<std::string> nvidia_package_directories(const std::string& file);

}  // namespace sluice
