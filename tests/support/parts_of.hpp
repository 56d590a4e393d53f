// Lists of words as one text.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace sluice::testing {

// The parts of `text` between separators.
inline std::vector<std::string> parts_of(const std::string& text, char separator = ' ') {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace sluice::testing
