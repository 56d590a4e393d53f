// Memory to measure on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/units.hpp"

namespace sluice::doctor {

struct FreeBytes {
  void operator()(std::byte* data) const { std::free(data); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// Zeroed, so that every page is there; 2 MiB-aligned.
inline AlignedBytes make_bytes(std::uint64_t bytes) {
  const std::uint64_t size = round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes);
  AlignedBytes data(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size)));
  if (!data) throw std::bad_alloc();
  std::memset(data.get(), 0, size);
  return data;
}

}  // namespace sluice::doctor
