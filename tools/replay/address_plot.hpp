// Draws memory over time: the address of each allocation, from its allocation to its free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Bytes held from `operation` on.
struct PlottedTotal {
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
};

enum class PlotColour : std::uint8_t { kCategory, kSize };

struct AddressPlot {
  std::string title;
  std::vector<PlottedBlock> blocks;
  std::vector<PlottedTotal> reserved;  // in order of operation; empty if not known
  std::vector<std::uint64_t> steps;    // operations at which iterations begin
  std::uint64_t operations = 0;        // the end of the axis; 0 for the end of the last block
  PlotColour colour = PlotColour::kCategory;
  std::size_t max_rectangles = 20'000;
};

// Draws the plots below each other in one SVG 1.1 document, which is self-contained and has no
// scripts. Precondition: there is at least one plot, and all have one PlotColour.
//
// Address ranges that nothing ever uses are cut out of the axis, and the place is marked, if they
// are larger than an eighth of the used ranges. A plot with more than max_rectangles blocks leaves
// out those of smallest area, and says how many. Blocks of no bytes or no duration are not drawn.
// Characters of a name that XML does not allow become '?'. A rectangle takes at most some 300
// bytes.
std::string draw_address_plots(std::span<const AddressPlot> plots);

}  // namespace sluice::replay
