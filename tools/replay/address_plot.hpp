// Memory over time as a picture: which allocation stood at which address, from when to when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"

namespace sluice::replay {

// One allocation as a policy placed it.
struct PlottedBlock {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;  // operations [begin, end)
  std::uint64_t end = 0;
  std::uint64_t stream = 0;
  Category category = Category::kExternal;
  std::string name;
};

// Memory that the policy held, used or not; where it is known.
struct PlottedRange {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// What was held from `operation` on.
struct PlottedTotal {
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
};

enum class PlotColour : std::uint8_t { kCategory, kSize };

struct AddressPlot {
  std::string title;
  std::vector<PlottedBlock> blocks;
  std::vector<PlottedRange> held;
  std::vector<PlottedTotal> reserved;  // in order of operation; empty: not known
  std::vector<std::uint64_t> steps;    // operations at which iterations begin
  std::uint64_t operations = 0;        // the axis's end; 0: where the last block ends
  PlotColour colour = PlotColour::kCategory;
  // Addresses that nothing ever used are cut out where they are this many or more together, and
  // the place is marked; 0: an eighth of what is used.
  std::uint64_t hole_bytes = 0;
  std::size_t max_rectangles = 20'000;
};

// A self-contained SVG 1.1 document, without scripts: addresses over operations above, live and
// reserved bytes below. Blocks beyond max_rectangles are left out, smallest area first, and the
// picture says how many. A name's characters that XML has no place for become '?'. Blocks of no
// bytes or no duration are not drawn. At most some 300 bytes for a rectangle.
std::string draw_address_plot(const AddressPlot& plot);

}  // namespace sluice::replay
