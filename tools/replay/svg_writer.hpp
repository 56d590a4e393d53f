// Writes the elements of an SVG document as text. Attributes and styles are given by the caller as
// they are; text from files goes through escape_xml.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace sluice::replay {

// At most two decimals.
std::string svg_number(double value);

// Replaces the characters that XML reserves, and control and non-ASCII characters by '?'. Cuts text
// after 120 characters, so that the size of a document is bounded.
std::string escape_xml(std::string_view text);

class SvgWriter {
 public:
  void raw(std::string_view text) { out_ += text; }
  // `content` is written as it is.
  void text(double x, double y, std::string_view style, const std::string& content);
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void rectangle(double x, double y, double width, double height, std::string_view style);
  // Leaves the element open: the caller writes "/>", or '>' and children.
  void open_rectangle(double x, double y, double width, double height, std::string_view style);
  std::string finish() && { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace sluice::replay
