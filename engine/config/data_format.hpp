// The kinds of training data, shared by the configuration and the data reader.
#pragma once

#include <cstdint>

namespace sluice::config {

// kBytes: any file, a token per byte. kLlmc: llm.c's `.bin`. kMegatron: `.idx` next to `.bin`.
enum class DataFormat : std::uint8_t { kBytes, kLlmc, kMegatron };

}  // namespace sluice::config
