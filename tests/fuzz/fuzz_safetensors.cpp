// Any bytes as a safetensors file: tensors that can be read to their last byte, or an InputError.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const sluice::MemoryFile file(data, size);
  try {
    const sluice::checkpoint::SafetensorsReader reader(file.path());
    std::uint64_t total_bytes = 0;
    for (const auto& tensor : reader.tensors()) {
      if (reader.find(tensor.name) != &tensor) __builtin_trap();
      std::vector<std::byte> content(tensor.bytes());  // at most the file: checked by the reader
      reader.read(tensor, 0, content);
      total_bytes += content.size();
    }
    if (total_bytes > size) __builtin_trap();
  } catch (const sluice::InputError&) {
  }
  return 0;
}
