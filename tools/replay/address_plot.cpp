#include "tools/replay/address_plot.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/units.hpp"
#include "tools/replay/plot_axis.hpp"

namespace sluice::replay {
namespace {

// Pixels.
constexpr double kWidth = 1280, kHeight = 860;
constexpr double kLeft = 92, kPlotWidth = 980;
constexpr double kAddressTop = 76, kAddressHeight = 500;
constexpr double kTotalTop = 620, kTotalHeight = 170;
constexpr double kLegendLeft = kLeft + kPlotWidth + 24;
constexpr std::size_t kColumns = 980;

// Okabe and Ito's colours, told apart by colour-blind readers, in the order of Category.
constexpr std::array<const char*, kCategoryCount> kCategoryColours{
    "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#d55e00", "#8c8c8c"};

struct SizeClass {
  std::uint64_t below_bytes;
  const char* colour;
  const char* label;
};
// From viridis, light to dark: order shows without hue.
constexpr std::array<SizeClass, 5> kSizeClasses{{{kMiB, "#fde725", "below 1 MiB"},
                                                 {10 * kMiB, "#6ccd5a", "below 10 MiB"},
                                                 {100 * kMiB, "#1f9e89", "below 100 MiB"},
                                                 {kGiB, "#31688e", "below 1 GiB"},
                                                 {UINT64_MAX, "#440154", "1 GiB and more"}}};

std::string number(double value) {
  std::array<char, 64> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 2);
  static_cast<void>(error);
  std::string result(text.data(), end);
  while (result.back() == '0') result.pop_back();
  if (result.back() == '.') result.pop_back();
  return result;
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> text{};
  char* const end = std::to_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  return "0x" + std::string(text.data(), end);
}

// Long names are cut, so that the document's size is bounded.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 120)) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += c < ' ' || c > '~' ? '?' : c;
    }
  }
  return result;
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

double area(std::uint64_t bytes, std::uint64_t begin, std::uint64_t end) {
  return end > begin ? static_cast<double>(bytes) * static_cast<double>(end - begin) : 0.0;
}

// Indices of the `most` largest by area, in their own order.
template <typename T>
std::vector<std::size_t> largest(const std::vector<T>& items, std::size_t most) {
  std::vector<std::pair<double, std::size_t>> areas;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const double one = area(items[i].bytes, items[i].begin, items[i].end);
    if (one > 0) areas.emplace_back(-one, i);
  }
  std::sort(areas.begin(), areas.end());
  if (areas.size() > most) areas.resize(most);
  std::vector<std::size_t> indices;
  for (const auto& [negative_area, index] : areas) indices.push_back(index);
  std::sort(indices.begin(), indices.end());
  return indices;
}

class Drawing {
 public:
  explicit Drawing(const AddressPlot& plot)
      : plot_(plot), operations_(end_of(plot)), addresses_(used_ranges(plot), plot.hole_bytes) {}

  std::string draw() {
    open();
    address_panel();
    total_panel();
    step_lines();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  static std::uint64_t end_of(const AddressPlot& plot) {
    std::uint64_t end = std::max<std::uint64_t>(plot.operations, 1);
    if (plot.operations != 0) return end;
    for (const PlottedBlock& block : plot.blocks) end = std::max(end, block.end);
    return end;
  }
  static std::vector<std::pair<std::uint64_t, std::uint64_t>> used_ranges(const AddressPlot& plot) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const PlottedBlock& block : plot.blocks) {
      if (block.end > block.begin) ranges.emplace_back(block.address, block.bytes);
    }
    for (const PlottedRange& range : plot.held) ranges.emplace_back(range.address, range.bytes);
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

  std::size_t colour_of(const PlottedBlock& block) const {
    if (plot_.colour == PlotColour::kCategory) return static_cast<std::size_t>(block.category);
    std::size_t index = 0;
    while (block.bytes >= kSizeClasses[index].below_bytes && index + 1 < kSizeClasses.size()) {
      ++index;
    }
    return index;
  }
  std::size_t colour_count() const {
    return plot_.colour == PlotColour::kCategory ? kCategoryCount : kSizeClasses.size();
  }
  const char* colour(std::size_t index) const {
    return plot_.colour == PlotColour::kCategory ? kCategoryColours[index]
                                                 : kSizeClasses[index].colour;
  }

  void text(double x, double y, std::string_view style, const std::string& content) {
    out_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" class=\"" + std::string(style) +
            "\">" + content + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, std::string_view style) {
    out_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
            "\" y2=\"" + number(y2) + "\" class=\"" + std::string(style) + "\"/>\n";
  }
  // Without the end of the element.
  void open_rectangle(double x, double y, double width, double height, std::string_view style) {
    out_ += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
            "\" height=\"" + number(height) + "\" class=\"" + std::string(style) + "\"";
  }

  void open() {
    out_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
        "version=\"1.1\" width=\"" +
        number(kWidth) + "\" height=\"" + number(kHeight) + "\" viewBox=\"0 0 " + number(kWidth) +
        " " + number(kHeight) + "\">\n<style>\n";
    out_ +=
        "text{font-family:sans-serif;font-size:12px;fill:#222}\n"
        ".t{font-size:17px;font-weight:bold}.n{fill:#555}\n"
        ".y{text-anchor:end}.x{text-anchor:middle}\n"
        ".p{fill:#fff;stroke:none}.f{fill:none;stroke:#444}.h{fill:#dedede}\n"
        ".g{stroke:#e4e4e4}.s{stroke:#000;stroke-dasharray:2 4;stroke-opacity:.45}\n"
        ".z{stroke:#000;stroke-dasharray:7 3}\n"
        ".l{fill:#7a9cc6}.r{fill:none;stroke:#000;stroke-width:1.4}\n"
        ".b{stroke:#fff;stroke-width:.25}\n";
    for (std::size_t c = 0; c < colour_count(); ++c) {
      out_ += ".c" + std::to_string(c) + "{fill:" + colour(c) + "}";
    }
    out_ += "\n</style>\n";
    open_rectangle(0, 0, kWidth, kHeight, "p");
    out_ += "/>\n";
    text(kLeft, 30, "t", escaped(plot_.title));
  }

  void panel(double top, double height, std::string_view style) {
    open_rectangle(kLeft, top, kPlotWidth, height, style);
    out_ += "/>\n";
  }

  void y_title(double top, double height, const std::string& content) {
    const std::string y = number(top + height / 2);
    out_ += "<text x=\"18\" y=\"" + y + "\" class=\"x\" transform=\"rotate(-90 18 " + y + ")\">" +
            content + "</text>\n";
  }

  void address_panel() {
    panel(kAddressTop, kAddressHeight, "p");
    for (const std::uint64_t tick : byte_ticks(addresses_.extent_bytes(), 10)) {
      line(kLeft, y_of(tick), kLeft + kPlotWidth, y_of(tick), "g");
      text(kLeft - 6, y_of(tick) + 4, "y", tick == 0 ? "0" : format_bytes(tick));
    }
    // Half of what may be drawn at most for what is held, the rest for blocks.
    const std::vector<std::size_t> held = largest(plot_.held, plot_.max_rectangles / 2);
    for (const std::size_t i : held) {
      const PlottedRange& range = plot_.held[i];
      open_span(range.address, range.bytes, range.begin, range.end, "h");
      out_ += "/>\n";
    }
    const std::vector<std::size_t> drawn =
        largest(plot_.blocks, plot_.max_rectangles - held.size());
    for (const std::size_t i : drawn) block(plot_.blocks[i]);
    for (const CompactAddresses::Hole& hole : addresses_.holes()) {
      const double y = y_of(hole.offset_bytes);
      line(kLeft, y, kLeft + kPlotWidth, y, "z");
      open_rectangle(kLeft + 8, y - 8, 182, 16, "p");
      out_ += "/>\n";
      text(kLeft + 14, y + 4, "n", format_bytes(hole.bytes) + " of addresses cut out");
    }
    panel(kAddressTop, kAddressHeight, "f");
    y_title(kAddressTop, kAddressHeight, "address, from the lowest used");
    std::string summary = std::to_string(drawn.size()) + " allocations drawn";
    const std::size_t left_out = plot_.blocks.size() - drawn.size();
    if (left_out > 0) {
      summary += ", " + std::to_string(left_out) + " not drawn: those of the least bytes x time";
    }
    if (held.size() < plot_.held.size()) {
      summary += "; " + std::to_string(plot_.held.size() - held.size()) + " held ranges not drawn";
    }
    text(kLeft, 54, "n", summary);
  }

  void open_span(std::uint64_t address, std::uint64_t bytes, std::uint64_t begin, std::uint64_t end,
                 std::string_view style) {
    const std::uint64_t offset = addresses_.offset_of(address);
    const double top = y_of(offset + bytes);
    const double left = x_of(begin);
    const double width = x_of(end) - left;
    const double height = y_of(offset) - top;
    // Neighbours are divided where that leaves something of both; what is thinner than a hair is
    // still seen.
    const bool has_border = width > 8 && height > 5;
    open_rectangle(left, top, std::max(0.2, width), std::max(0.2, height),
                   has_border ? std::string(style) + " b" : std::string(style));
  }

  void block(const PlottedBlock& one) {
    open_span(one.address, one.bytes, one.begin, one.end, "c" + std::to_string(colour_of(one)));
    out_ += "><title>" + escaped(one.name) + ", " + format_bytes(one.bytes) + ", stream " +
            std::to_string(one.stream) + ", operations " + std::to_string(one.begin) + " to " +
            std::to_string(one.end) + ", at " + hexadecimal(one.address) + "</title></rect>\n";
  }

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
      line(kLeft, y, kLeft + kPlotWidth, y, "g");
      text(kLeft - 6, y + 4, "y", tick == 0 ? "0" : format_bytes(tick));
    }
    out_ += "<path class=\"l\" d=\"M" + number(kLeft) + " " + number(kTotalTop + kTotalHeight) +
            steps(column_maxima(live, operations_), y_at) + "L" + number(kLeft + kPlotWidth) + " " +
            number(kTotalTop + kTotalHeight) + "Z\"/>\n";
    if (!plot_.reserved.empty()) {
      std::string path = steps(column_maxima(plot_.reserved, operations_), y_at);
      path.front() = 'M';
      out_ += "<path class=\"r\" d=\"" + path + "\"/>\n";
    }
    panel(kTotalTop, kTotalHeight, "f");
    y_title(kTotalTop, kTotalHeight, "bytes");
    for (const std::uint64_t tick : decimal_ticks(operations_, 10)) {
      line(x_of(tick), kTotalTop + kTotalHeight, x_of(tick), kTotalTop + kTotalHeight + 5, "f");
      text(x_of(tick), kTotalTop + kTotalHeight + 20, "x", std::to_string(tick));
    }
    text(kLeft + kPlotWidth / 2, kTotalTop + kTotalHeight + 44, "x",
         "operation (allocations and frees)");
  }

  template <typename Y>
  static std::string steps(const std::array<double, kColumns>& values, const Y& y_at) {
    std::string path;
    for (std::size_t c = 0; c < kColumns; ++c) {
      const double x = kLeft + kPlotWidth * static_cast<double>(c) / kColumns;
      if (c == 0 || values[c] != values[c - 1])
        path += "L" + number(x) + " " + number(y_at(values[c]));
      path += c + 1 == kColumns || values[c] != values[c + 1]
                  ? "H" + number(x + kPlotWidth / kColumns)
                  : "";
    }
    return path;
  }

  void step_lines() {
    if (plot_.steps.size() > 500) return;  // they would hide what they divide
    for (const std::uint64_t step : plot_.steps) {
      const double x = x_of(step);
      line(x, kAddressTop, x, kAddressTop + kAddressHeight, "s");
      line(x, kTotalTop, x, kTotalTop + kTotalHeight, "s");
    }
  }

  double legend_row(double y, std::string_view style, const std::string& label) {
    open_rectangle(kLegendLeft, y - 10, 14, 12, style);
    out_ += "/>\n";
    text(kLegendLeft + 21, y, "n", label);
    return y + 20;
  }

  void legend() {
    double y = kAddressTop + 12;
    std::array<std::uint64_t, kCategoryCount> counts{};
    for (const PlottedBlock& block : plot_.blocks) ++counts[colour_of(block)];
    for (std::size_t c = 0; c < colour_count(); ++c) {
      if (counts[c] == 0) continue;
      const std::string label = plot_.colour == PlotColour::kCategory
                                    ? std::string(category_name(static_cast<Category>(c)))
                                    : kSizeClasses[c].label;
      y = legend_row(y, "c" + std::to_string(c), label + " (" + std::to_string(counts[c]) + ")");
    }
    if (!plot_.held.empty()) y = legend_row(y, "h", "held, not in use");
    if (!plot_.steps.empty() && plot_.steps.size() <= 500) {
      line(kLegendLeft + 7, y - 10, kLegendLeft + 7, y + 4, "s");
      text(kLegendLeft + 21, y, "n", "an iteration begins");
    }
    y = kTotalTop + 12;
    y = legend_row(y, "l", "live, at most");
    text(kLegendLeft + 21, y - 4, "n", format_bytes(peak_live_bytes_));
    y += 20;
    if (plot_.reserved.empty()) return;
    line(kLegendLeft, y - 4, kLegendLeft + 14, y - 4, "r");
    text(kLegendLeft + 21, y, "n", "reserved, at most");
    text(kLegendLeft + 21, y + 16, "n", format_bytes(peak_bytes_));
  }

  const AddressPlot& plot_;
  std::uint64_t operations_;
  CompactAddresses addresses_;
  std::uint64_t peak_live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::string out_;
};

}  // namespace

std::string draw_address_plot(const AddressPlot& plot) {
  return Drawing(plot).draw();
}

}  // namespace sluice::replay
