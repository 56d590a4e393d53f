#include "base/edit_distance.hpp"

#include <algorithm>
#include <vector>

namespace sluice {

// One row of the usual table is held: row[j] is the distance of a's first i characters to b's first
// j, `diagonal` the entry above and to the left.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

bool may_be_typing_error(std::string_view word, std::size_t distance) {
  constexpr std::size_t kAlways = 2;
  return distance <= std::max(kAlways, word.size() / 3) &&
         (distance < word.size() || distance == 0);
}

}  // namespace sluice
