#include "tools/palette/palette.hpp"

#include <array>

namespace sluice::palette {

std::string_view category_color(Category category) {
  // In the order of Category: weight, gradient, optimizer, activation, workspace, communication,
  // external.
  constexpr std::array<std::string_view, kCategoryCount> kColors{
      "#0072b2", "#d55e00", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#999999"};
  return kColors[static_cast<std::size_t>(category)];
}

}  // namespace sluice::palette
