// The colours of memory categories. The page of `sluice report` and the plots of `sluice replay`
// both take them from here, so a category looks the same everywhere.
#pragma once

#include <string_view>

#include "base/memory_kinds.hpp"

namespace sluice::palette {

// "#rrggbb", from the palette of Okabe and Ito, which readers with any common form of colour
// blindness can tell apart.
std::string_view category_color(Category category);

}  // namespace sluice::palette
