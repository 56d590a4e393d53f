// A file made of a fuzzer's input, in memory, with a path that can be opened.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t bytes)
      : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) __builtin_trap();
    while (bytes > 0) {
      const ssize_t put = ::write(descriptor_, data, bytes);
      if (put <= 0) __builtin_trap();
      data += put;
      bytes -= static_cast<std::size_t>(put);
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace sluice
