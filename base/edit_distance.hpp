// The nearest known word to a mistyped one, for messages that suggest it.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

// Levenshtein distance: the fewest insertions, removals and replacements of a character.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Whether `distance` edits may be slips in typing `word`: two, or one in three characters, and not
// all of it. A message suggests nothing that is farther away.
bool may_be_typing_error(std::string_view word, std::size_t distance);

}  // namespace sluice
