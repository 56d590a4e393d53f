// Reads lifetimes of buffers from text, in the format of public packing benchmarks.
#pragma once

#include <string>
#include <vector>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::replay {

// The first line names the columns id, lower, upper and size, in any order. Each other line is a
// buffer that lives in [lower, upper) and takes `size` bytes; these are whole numbers without a
// sign.
// Limits: 100,000 buffers and 64 MiB. InputError with the file, the line and the right form.
std::vector<packing::Lifetime> read_lifetime_csv(const std::string& path);
// `source` is the name for messages.
std::vector<packing::Lifetime> parse_lifetime_csv(const std::string& text,
                                                  const std::string& source);

}  // namespace sluice::replay
