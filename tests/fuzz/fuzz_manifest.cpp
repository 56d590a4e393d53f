// Any bytes as a checkpoint's manifest: one that is written back the same, or an InputError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "engine/checkpoint/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto manifest = sluice::checkpoint::parse_manifest(text, "manifest.json");
    if (sluice::checkpoint::parse_manifest(sluice::checkpoint::format_manifest(manifest),
                                           "again") != manifest) {
      __builtin_trap();
    }
  } catch (const sluice::InputError&) {
  }
  return 0;
}
