// The nearest known word to a mistyped one, for messages that suggest it.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

// Levenshtein distance: the fewest insertions, removals and replacements of a character.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace sluice
