#include "tools/replay/svg_writer.hpp"

#include <array>
#include <charconv>

namespace sluice::replay {

std::string svg_number(double value) {
  std::array<char, 64> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 2);
  static_cast<void>(error);
  std::string result(text.data(), end);
  while (result.back() == '0') result.pop_back();
  if (result.back() == '.') result.pop_back();
  return result;
}

std::string escape_xml(std::string_view text) {
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

void SvgWriter::text(double x, double y, std::string_view style, const std::string& content) {
  out_ += "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" class=\"" +
          std::string(style) + "\">" + content + "</text>\n";
}

void SvgWriter::line(double x1, double y1, double x2, double y2, std::string_view style) {
  out_ += "<line x1=\"" + svg_number(x1) + "\" y1=\"" + svg_number(y1) + "\" x2=\"" +
          svg_number(x2) + "\" y2=\"" + svg_number(y2) + "\" class=\"" + std::string(style) +
          "\"/>\n";
}

void SvgWriter::open_rectangle(double x, double y, double width, double height,
                               std::string_view style) {
  out_ += "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
          svg_number(width) + "\" height=\"" + svg_number(height) + "\" class=\"" +
          std::string(style) + "\"";
}

void SvgWriter::rectangle(double x, double y, double width, double height, std::string_view style) {
  open_rectangle(x, y, width, height, style);
  out_ += "/>\n";
}

}  // namespace sluice::replay
