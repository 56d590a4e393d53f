// Lifetimes of buffers as text: the format of public packing benchmarks.
#pragma once

#include <string>
#include <vector>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::replay {

// First line: the columns id, lower, upper and size, in any order; then a line for each buffer (at
// most 100,000), which lives in [lower, upper) and takes `size` bytes: whole numbers without a
// sign. At most 64 MiB. InputError with the file, the line and what would be right.
std::vector<packing::Lifetime> read_lifetime_csv(const std::string& path);
// `source`: the name for messages.
std::vector<packing::Lifetime> parse_lifetime_csv(const std::string& text, const std::string& source);

}  // namespace sluice::replay
