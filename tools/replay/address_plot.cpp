// Draws allocations as rectangles: operations run to the right, addresses upward.
//
// A plot has two panels with one axis of operations. The upper one shows the blocks. Address ranges
// that no block ever uses are cut out of its axis where they are large (plot_axis.hpp). The lower
// one shows live and reserved bytes: each pixel column takes the largest value of its operations,
// so that no peak is lost. Blocks that cover the most bytes times operations are drawn first, up to
// a bound; the picture says how many are missing.
#include "tools/replay/address_plot.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/palette/palette.hpp"
#include "tools/replay/plot_axis.hpp"
#include "tools/replay/svg_writer.hpp"

namespace sluice::replay {
namespace {

// Pixels.
constexpr double kWidth = 1280, kHeight = 860;
constexpr double kLeft = 92, kPlotWidth = 980;
constexpr double kAddressTop = 76, kAddressHeight = 500;
constexpr double kTotalTop = 620, kTotalHeight = 170;
constexpr double kLegendLeft = kLeft + kPlotWidth + 24;
constexpr std::size_t kColumns = 980;

struct SizeClass {
  std::uint64_t below_bytes;
  std::string_view colour;
  std::string_view label;
};
// From viridis, light to dark: the order shows without hue.
constexpr std::array<SizeClass, 5> kSizeClasses{{{kMiB, "#fde725", "below 1 MiB"},
                                                 {10 * kMiB, "#6ccd5a", "below 10 MiB"},
                                                 {100 * kMiB, "#1f9e89", "below 100 MiB"},
                                                 {kGiB, "#31688e", "below 1 GiB"},
                                                 {UINT64_MAX, "#440154", "1 GiB and more"}}};

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> text{};
  char* const end = std::to_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  return "0x" + std::string(text.data(), end);
}

std::size_t colour_count(PlotColour by) {
  return by == PlotColour::kCategory ? kCategoryCount : kSizeClasses.size();
}
std::string_view colour_of(PlotColour by, std::size_t index) {
  return by == PlotColour::kCategory ? palette::category_color(static_cast<Category>(index))
                                     : kSizeClasses[index].colour;
}

// The largest value in each column of the plot.
std::array<double, kColumns> column_maxima(const std::vector<PlottedTotal>& totals,
                                           std::uint64_t operations) {
  std::array<double, kColumns> maxima{};
  const auto column = [&](std::uint64_t operation) {
    const double share = static_cast<double>(operation) / static_cast<double>(operations);
    return std::min(kColumns - 1, static_cast<std::size_t>(share * kColumns));
  };
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (totals[i].operation >= operations) break;
    const std::size_t last =
        column(i + 1 < totals.size() ? totals[i + 1].operation : operations - 1);
    for (std::size_t c = column(totals[i].operation); c <= last; ++c) {
      maxima[c] = std::max(maxima[c], static_cast<double>(totals[i].bytes));
    }
  }
  return maxima;
}

// The live bytes after each change. At one operation, ends come before begins.
std::vector<PlottedTotal> live_totals(const std::vector<PlottedBlock>& blocks) {
  struct Change {
    std::uint64_t operation;
    bool is_begin;
    std::uint64_t bytes;
  };
  std::vector<Change> changes;
  for (const PlottedBlock& block : blocks) {
    if (block.end <= block.begin) continue;
    changes.push_back({block.begin, true, block.bytes});
    changes.push_back({block.end, false, block.bytes});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::pair(a.operation, a.is_begin) < std::pair(b.operation, b.is_begin);
  });
  std::vector<PlottedTotal> totals;
  std::uint64_t bytes = 0;
  for (const Change& change : changes) {
    bytes = change.is_begin ? bytes + change.bytes : bytes - change.bytes;
    totals.push_back({change.operation, bytes});
  }
  return totals;
}

// Bytes times operations.
double area(const PlottedBlock& block) {
  if (block.end <= block.begin) return 0.0;
  return static_cast<double>(block.bytes) * static_cast<double>(block.end - block.begin);
}

// The indices of the `most` blocks of largest area, in ascending order.
std::vector<std::size_t> largest(const std::vector<PlottedBlock>& blocks, std::size_t most) {
  std::vector<std::pair<double, std::size_t>> areas;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const double one = area(blocks[i]);
    if (one > 0) areas.emplace_back(-one, i);
  }
  std::sort(areas.begin(), areas.end());
  if (areas.size() > most) areas.resize(most);
  std::vector<std::size_t> indices;
  for (const auto& [negative_area, index] : areas) indices.push_back(index);
  std::sort(indices.begin(), indices.end());
  return indices;
}

// One plot: its panels, axes and legend.
class Drawing {
 public:
  explicit Drawing(const AddressPlot& plot)
      : plot_(plot), operations_(end_of(plot)), addresses_(used_ranges(plot), 0) {}

  // The elements of the plot, without the document around them.
  std::string draw() {
    out_.text(kLeft, 30, "t", escape_xml(plot_.title));
    address_panel();
    total_panel();
    step_lines();
    legend();
    return std::move(out_).finish();
  }

 private:
  static std::uint64_t end_of(const AddressPlot& plot) {
    std::uint64_t end = std::max<std::uint64_t>(plot.operations, 1);
    if (plot.operations != 0) return end;
    for (const PlottedBlock& block : plot.blocks) end = std::max(end, block.end);
    return end;
  }
  // The address ranges that blocks ever use.
  static std::vector<std::pair<std::uint64_t, std::uint64_t>> used_ranges(const AddressPlot& plot) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const PlottedBlock& block : plot.blocks) {
      if (block.end > block.begin) ranges.emplace_back(block.address, block.bytes);
    }
    return ranges;
  }

  double x_of(std::uint64_t operation) const {
    return kLeft + kPlotWidth * static_cast<double>(std::min(operation, operations_)) /
                       static_cast<double>(operations_);
  }
  double y_of(std::uint64_t offset) const {
    const auto extent = static_cast<double>(std::max<std::uint64_t>(1, addresses_.extent_bytes()));
    return kAddressTop + kAddressHeight * (1.0 - static_cast<double>(offset) / extent);
  }

  std::size_t colour_index(const PlottedBlock& block) const {
    if (plot_.colour == PlotColour::kCategory) return static_cast<std::size_t>(block.category);
    std::size_t index = 0;
    while (block.bytes >= kSizeClasses[index].below_bytes && index + 1 < kSizeClasses.size()) {
      ++index;
    }
    return index;
  }
  void panel(double top, double height, std::string_view style) {
    out_.rectangle(kLeft, top, kPlotWidth, height, style);
  }

  void y_title(double top, double height, const std::string& content) {
    const std::string y = svg_number(top + height / 2);
    out_.raw("<text x=\"18\" y=\"" + y + "\" class=\"x\" transform=\"rotate(-90 18 " + y + ")\">" +
             content + "</text>\n");
  }

  // The upper panel: blocks over a grid, and marks where addresses were cut out.
  void address_panel() {
    panel(kAddressTop, kAddressHeight, "p");
    for (const std::uint64_t tick : byte_ticks(addresses_.extent_bytes(), 10)) {
      out_.line(kLeft, y_of(tick), kLeft + kPlotWidth, y_of(tick), "g");
      out_.text(kLeft - 6, y_of(tick) + 4, "y", tick == 0 ? "0" : format_bytes(tick));
    }
    const std::vector<std::size_t> drawn = largest(plot_.blocks, plot_.max_rectangles);
    for (const std::size_t i : drawn) block(plot_.blocks[i]);
    for (const CompactAddresses::Hole& hole : addresses_.holes()) {
      const double y = y_of(hole.offset_bytes);
      out_.line(kLeft, y, kLeft + kPlotWidth, y, "z");
      out_.rectangle(kLeft + 8, y - 8, 182, 16, "p");
      out_.text(kLeft + 14, y + 4, "n", format_bytes(hole.bytes) + " of addresses cut out");
    }
    panel(kAddressTop, kAddressHeight, "f");
    y_title(kAddressTop, kAddressHeight, "address, from the lowest used");
    std::string summary = std::to_string(drawn.size()) + " allocations drawn";
    const std::size_t left_out = plot_.blocks.size() - drawn.size();
    if (left_out > 0) {
      summary += ", " + std::to_string(left_out) + " not drawn: those of the least bytes x time";
    }
    out_.text(kLeft, 54, "n", summary);
  }

  // One rectangle. Viewers show its title under the pointer.
  void block(const PlottedBlock& one) {
    const std::uint64_t offset = addresses_.offset_of(one.address);
    const double top = y_of(offset + one.bytes);
    const double left = x_of(one.begin);
    const double width = x_of(one.end) - left;
    const double height = y_of(offset) - top;
    // A border divides neighbours, if the rectangle is large enough to show both. The least width
    // and height keep the thinnest blocks visible.
    const std::string style = "c" + std::to_string(colour_index(one));
    const bool has_border = width > 8 && height > 5;
    out_.open_rectangle(left, top, std::max(0.2, width), std::max(0.2, height),
                        has_border ? style + " b" : style);
    out_.raw("><title>" + escape_xml(one.name) + ", " + format_bytes(one.bytes) + ", stream " +
             std::to_string(one.stream) + ", operations " + std::to_string(one.begin) + " to " +
             std::to_string(one.end) + ", at " + hexadecimal(one.address) + "</title></rect>\n");
  }

  // The lower panel: live bytes as an area, reserved bytes as a line.
  void total_panel() {
    const std::vector<PlottedTotal> live = live_totals(plot_.blocks);
    std::uint64_t most = 1;
    for (const PlottedTotal& one : live) most = std::max(most, one.bytes);
    peak_live_bytes_ = most;
    for (const PlottedTotal& one : plot_.reserved) most = std::max(most, one.bytes);
    peak_bytes_ = most;
    const auto y_at = [&](double bytes) {
      return kTotalTop + kTotalHeight * (1.0 - bytes / (1.05 * static_cast<double>(most)));
    };
    panel(kTotalTop, kTotalHeight, "p");
    for (const std::uint64_t tick : byte_ticks(most, 5)) {
      const double y = y_at(static_cast<double>(tick));
      out_.line(kLeft, y, kLeft + kPlotWidth, y, "g");
      out_.text(kLeft - 6, y + 4, "y", tick == 0 ? "0" : format_bytes(tick));
    }
    const std::string floor = " " + svg_number(kTotalTop + kTotalHeight);
    out_.raw("<path class=\"l\" d=\"M" + svg_number(kLeft) + floor +
             steps(column_maxima(live, operations_), y_at) + "L" + svg_number(kLeft + kPlotWidth) +
             floor + "Z\"/>\n");
    if (!plot_.reserved.empty()) {
      std::string path = steps(column_maxima(plot_.reserved, operations_), y_at);
      path.front() = 'M';
      out_.raw("<path class=\"r\" d=\"" + path + "\"/>\n");
    }
    panel(kTotalTop, kTotalHeight, "f");
    y_title(kTotalTop, kTotalHeight, "bytes");
    for (const std::uint64_t tick : decimal_ticks(operations_, 10)) {
      out_.line(x_of(tick), kTotalTop + kTotalHeight, x_of(tick), kTotalTop + kTotalHeight + 5,
                "f");
      out_.text(x_of(tick), kTotalTop + kTotalHeight + 20, "x", std::to_string(tick));
    }
    out_.text(kLeft + kPlotWidth / 2, kTotalTop + kTotalHeight + 44, "x",
              "operation (allocations and frees)");
  }

  template <typename Y>
  static std::string steps(const std::array<double, kColumns>& values, const Y& y_at) {
    std::string path;
    for (std::size_t c = 0; c < kColumns; ++c) {
      const double x = kLeft + kPlotWidth * static_cast<double>(c) / kColumns;
      if (c == 0 || values[c] != values[c - 1])
        path += "L" + svg_number(x) + " " + svg_number(y_at(values[c]));
      path += c + 1 == kColumns || values[c] != values[c + 1]
                  ? "H" + svg_number(x + kPlotWidth / kColumns)
                  : "";
    }
    return path;
  }

  // Dashed lines where iterations begin.
  void step_lines() {
    if (plot_.steps.size() > 500) return;  // so many lines would cover the blocks
    for (const std::uint64_t step : plot_.steps) {
      const double x = x_of(step);
      out_.line(x, kAddressTop, x, kAddressTop + kAddressHeight, "s");
      out_.line(x, kTotalTop, x, kTotalTop + kTotalHeight, "s");
    }
  }

  double legend_row(double y, std::string_view style, const std::string& label) {
    out_.rectangle(kLegendLeft, y - 10, 14, 12, style);
    out_.text(kLegendLeft + 21, y, "n", label);
    return y + 20;
  }

  void legend() {
    double y = kAddressTop + 12;
    std::array<std::uint64_t, kCategoryCount> counts{};
    for (const PlottedBlock& block : plot_.blocks) ++counts[colour_index(block)];
    for (std::size_t c = 0; c < colour_count(plot_.colour); ++c) {
      if (counts[c] == 0) continue;
      const std::string_view label = plot_.colour == PlotColour::kCategory
                                         ? category_name(static_cast<Category>(c))
                                         : kSizeClasses[c].label;
      y = legend_row(y, "c" + std::to_string(c),
                     std::string(label) + " (" + std::to_string(counts[c]) + ")");
    }
    if (!plot_.steps.empty() && plot_.steps.size() <= 500) {
      out_.line(kLegendLeft + 7, y - 10, kLegendLeft + 7, y + 4, "s");
      out_.text(kLegendLeft + 21, y, "n", "an iteration begins");
    }
    y = kTotalTop + 12;
    y = legend_row(y, "l", "live, at most");
    out_.text(kLegendLeft + 21, y - 4, "n", format_bytes(peak_live_bytes_));
    y += 20;
    if (plot_.reserved.empty()) return;
    out_.line(kLegendLeft, y - 4, kLegendLeft + 14, y - 4, "r");
    out_.text(kLegendLeft + 21, y, "n", "reserved, at most");
    out_.text(kLegendLeft + 21, y + 16, "n", format_bytes(peak_bytes_));
  }

  const AddressPlot& plot_;
  std::uint64_t operations_;
  CompactAddresses addresses_;
  std::uint64_t peak_live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  SvgWriter out_;
};

// The head of the document. Its styles hold for all plots in it.
void open_document(SvgWriter& out, std::size_t plot_count, PlotColour colour) {
  const std::string width = svg_number(kWidth);
  const std::string height = svg_number(kHeight * static_cast<double>(plot_count));
  out.raw(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "version=\"1.1\" width=\"" +
      width + "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " + height +
      "\">\n<style>\n");
  out.raw(
      "text{font-family:sans-serif;font-size:12px;fill:#222}\n"
      ".t{font-size:17px;font-weight:bold}.n{fill:#555}\n"
      ".y{text-anchor:end}.x{text-anchor:middle}\n"
      ".p{fill:#fff;stroke:none}.f{fill:none;stroke:#444}\n"
      ".g{stroke:#e4e4e4}.s{stroke:#000;stroke-dasharray:2 4;stroke-opacity:.45}\n"
      ".z{stroke:#000;stroke-dasharray:7 3}\n"
      ".l{fill:#7a9cc6}.r{fill:none;stroke:#000;stroke-width:1.4}\n"
      ".b{stroke:#fff;stroke-width:.25}\n");
  for (std::size_t c = 0; c < colour_count(colour); ++c) {
    out.raw(".c" + std::to_string(c) + "{fill:" + std::string(colour_of(colour, c)) + "}");
  }
  out.raw("\n</style>\n");
  out.rectangle(0, 0, kWidth, kHeight * static_cast<double>(plot_count), "p");
}

}  // namespace

std::string draw_address_plots(std::span<const AddressPlot> plots) {
  SLUICE_CHECK(!plots.empty());
  SvgWriter out;
  open_document(out, plots.size(), plots.front().colour);
  for (std::size_t i = 0; i < plots.size(); ++i) {
    SLUICE_CHECK(plots[i].colour == plots.front().colour);
    out.raw("<g transform=\"translate(0 " + svg_number(kHeight * static_cast<double>(i)) +
            ")\">\n");
    out.raw(Drawing(plots[i]).draw());
    out.raw("</g>\n");
  }
  out.raw("</svg>\n");
  return std::move(out).finish();
}

}  // namespace sluice::replay
