// The suites count in pages of the device.
#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace sluice::allocator {

inline constexpr std::uint64_t kPage = kPageBytes;

}  // namespace sluice::allocator
