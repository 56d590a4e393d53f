#include "tools/replay/address_plot.hpp"

#include <gtest/gtest.h>

#include <charconv>
#include <map>
#include <stdexcept>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "tools/palette/palette.hpp"
#include "tools/replay/plot_axis.hpp"

namespace sluice::replay {
namespace {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // before the first child
};

// Parses as much of XML as decides whether a document is well-formed. Throws the first fault.
class XmlReader {
 public:
  explicit XmlReader(const std::string& text) : text_(text) {}

  std::vector<Element> read() {
    if (!text_.starts_with("<?xml ")) fail("no declaration");
    at_ = text_.find("?>") + 2;
    std::vector<std::size_t> open;
    do {
      const std::string content = until('<');
      check_entities(content);
      if (!open.empty()) elements_[open.back()].text += content;
      if (open.empty() && content.find_first_not_of(" \n") != std::string::npos)
        fail("text outside");
      std::string tag = until('>');
      if (tag.starts_with('/')) {
        if (open.empty() || elements_[open.back()].name != tag.substr(1)) fail("closes " + tag);
        open.pop_back();
        continue;
      }
      const bool is_empty = tag.ends_with('/');
      if (is_empty) tag.pop_back();
      elements_.push_back(parse_tag(tag));
      if (!is_empty) open.push_back(elements_.size() - 1);
    } while (!open.empty());
    if (text_.find_first_not_of(" \n", at_) != std::string::npos) fail("more than one root");
    return std::move(elements_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw std::runtime_error(reason + " before byte " + std::to_string(at_));
  }
  std::string until(char stop) {
    const std::size_t end = text_.find(stop, at_);
    if (end == std::string::npos) fail("ends early");
    std::string part = text_.substr(at_, end - at_);
    at_ = end + 1;
    return part;
  }
  void check_entities(const std::string& content) const {
    for (std::size_t i = 0; i < content.size(); ++i) {
      if (static_cast<unsigned char>(content[i]) < ' ' && content[i] != '\n') fail("control");
      if (content[i] != '&') continue;
      const std::string entity = content.substr(i, content.find(';', i) - i + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") {
        fail("entity " + entity);
      }
    }
  }
  Element parse_tag(const std::string& tag) const {
    Element element;
    element.name = tag.substr(0, tag.find(' '));
    std::size_t at = element.name.size();
    while (at < tag.size()) {
      const std::size_t equals = tag.find("=\"", at);
      const std::size_t end = equals == std::string::npos ? equals : tag.find('"', equals + 2);
      if (end == std::string::npos || tag[at] != ' ') fail("attribute in " + tag);
      const std::string key = tag.substr(at + 1, equals - at - 1);
      const std::string value = tag.substr(equals + 2, end - equals - 2);
      check_entities(value);
      if (!element.attributes.emplace(key, value).second) fail("twice " + key);
      at = end + 1;
    }
    return element;
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::vector<Element> elements_;
};

double attribute(const Element& element, const std::string& key) {
  const std::string& text = element.attributes.at(key);
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  EXPECT_TRUE(error == std::errc() && end == text.data() + text.size()) << key << " " << text;
  return value;
}

std::vector<Element> titled(const std::vector<Element>& elements) {
  std::vector<Element> result;
  for (std::size_t i = 0; i + 1 < elements.size(); ++i) {
    if (elements[i].name == "rect" && elements[i + 1].name == "title") {
      result.push_back(elements[i]);
      result.back().text = elements[i + 1].text;
    }
  }
  return result;
}

AddressPlot random_plot(std::size_t count) {
  const CounterRng rng(9, stream_of("address_plot"));
  AddressPlot plot;
  plot.title = "best fit, \"<dense>\" & others";
  for (std::uint64_t i = 0; i < count; ++i) {
    PlottedBlock block;
    block.address = rng.below(5 * i, 40) * kGiB + rng.below(5 * i + 1, kMiB);
    block.bytes = rng.below(5 * i + 2, kGiB);
    block.begin = rng.below(5 * i + 3, 10'000);
    block.end = block.begin + rng.below(5 * i + 4, 300);
    block.category = static_cast<Category>(i % kCategoryCount);
    block.name = "a<b>&\"c'\x01\xff]]>";
    plot.blocks.push_back(block);
    plot.reserved.push_back({i * 10, i * kMiB});
  }
  plot.steps = {0, 4'000, 8'000};
  return plot;
}

std::string draw(const AddressPlot& plot) {
  return draw_address_plots({&plot, 1});
}

TEST(AddressPlot, IsWellFormedAndWithinItsBounds) {
  for (const PlotColour colour : {PlotColour::kCategory, PlotColour::kSize}) {
    AddressPlot plot = random_plot(2'000);
    plot.colour = colour;
    const std::string svg = draw(plot);
    const std::vector<Element> elements = XmlReader(svg).read();
    ASSERT_EQ(elements.front().name, "svg");
    const double width = attribute(elements.front(), "width");
    const double height = attribute(elements.front(), "height");
    for (const Element& element : elements) {
      if (element.name != "rect") continue;
      EXPECT_GE(attribute(element, "x"), 0.0);
      EXPECT_GE(attribute(element, "y"), 0.0);
      EXPECT_LE(attribute(element, "x") + attribute(element, "width"), width + 0.5);
      EXPECT_LE(attribute(element, "y") + attribute(element, "height"), height + 0.5);
    }
    for (const char* word : {"<script", "href", "url("}) {
      EXPECT_EQ(svg.find(word), std::string::npos);
    }
    for (const char* word : {"GiB</text>", "operation (", "live, at most", "reserved, at most"}) {
      EXPECT_NE(svg.find(word), std::string::npos) << word;
    }
  }
}

TEST(AddressPlot, ABlockIsDrawnAtItsAddressAndTime) {
  AddressPlot plot;
  plot.operations = 100;
  plot.blocks = {{0, 3 * kMiB, 0, 50, 0, Category::kWeight, "low"},
                 {3 * kMiB, kMiB, 50, 100, 7, Category::kGradient, "high"}};
  const std::string svg = draw(plot);
  const std::vector<Element> blocks = titled(XmlReader(svg).read());
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_NEAR(attribute(blocks[0], "height"), 3 * attribute(blocks[1], "height"), 0.05);
  EXPECT_NEAR(attribute(blocks[0], "width"), attribute(blocks[1], "width"), 0.02);
  EXPECT_NEAR(attribute(blocks[0], "x") + attribute(blocks[0], "width"), attribute(blocks[1], "x"),
              0.02);
  EXPECT_NEAR(attribute(blocks[1], "y") + attribute(blocks[1], "height"), attribute(blocks[0], "y"),
              0.02);
  EXPECT_NE(blocks[0].attributes.at("class"), blocks[1].attributes.at("class"));
  EXPECT_EQ(blocks[1].text, "high, 1.00 MiB, stream 7, operations 50 to 100, at 0x300000");
}

TEST(AddressPlot, KeepsTheLargestAndCountsTheOthers) {
  AddressPlot plot;
  for (std::uint64_t i = 0; i < 50; ++i) {
    plot.blocks.push_back({i * kMiB, kMiB, 0, i, 0, Category::kActivation, std::to_string(i)});
  }
  plot.max_rectangles = 10;
  const std::string svg = draw(plot);
  const std::vector<Element> blocks = titled(XmlReader(svg).read());
  ASSERT_EQ(blocks.size(), 10u);
  EXPECT_TRUE(blocks.front().text.starts_with("40,")) << blocks.front().text;
  EXPECT_NE(svg.find("10 allocations drawn, 40 not drawn"), std::string::npos);
  EXPECT_LE(draw(random_plot(60'000)).size(), std::size_t{8} << 20);
}

// Each category has the colour that the report's page gives it.
TEST(AddressPlot, CategoriesHaveTheColoursOfThePalette) {
  const std::string svg = draw(random_plot(100));
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    const std::string rule = ".c" + std::to_string(c) + "{fill:" +
                             std::string(palette::category_color(static_cast<Category>(c))) + "}";
    EXPECT_NE(svg.find(rule), std::string::npos) << rule;
  }
}

TEST(AddressPlot, SeveralPlotsStandBelowEachOtherInOneDocument) {
  std::vector<AddressPlot> plots(3, random_plot(50));
  for (std::size_t i = 0; i < plots.size(); ++i) plots[i].title = "plot " + std::to_string(i);
  const std::string svg = draw_address_plots(plots);
  const std::vector<Element> elements = XmlReader(svg).read();
  const double one = attribute(XmlReader(draw(plots[0])).read().front(), "height");
  EXPECT_EQ(attribute(elements.front(), "height"), 3 * one);
  std::vector<std::string> groups;
  std::vector<std::string> titles;
  for (const Element& element : elements) {
    if (element.name == "g") groups.push_back(element.attributes.at("transform"));
    if (element.name == "text" && element.attributes.at("class") == "t") {
      titles.push_back(element.text);
    }
  }
  EXPECT_EQ(groups,
            (std::vector<std::string>{"translate(0 0)", "translate(0 860)", "translate(0 1720)"}));
  EXPECT_EQ(titles, (std::vector<std::string>{"plot 0", "plot 1", "plot 2"}));
}

TEST(AddressPlot, AnEmptyPlotDrawsNoBlock) {
  const std::string svg = draw({});
  EXPECT_TRUE(titled(XmlReader(svg).read()).empty());
  EXPECT_NE(svg.find("0 allocations drawn"), std::string::npos);
}

TEST(CompactAddresses, LargeHolesAreCutAndSmallOnesKept) {
  const CompactAddresses map({{1000, 100}, {1150, 50}, {900'000, 100}, {1100, 10}}, 500);
  ASSERT_EQ(map.holes().size(), 1u);
  EXPECT_EQ(map.holes()[0].bytes, 900'000u - 1200u);
  EXPECT_EQ(map.offset_of(1000), 0u);
  EXPECT_EQ(map.offset_of(1160), 160u);
  EXPECT_EQ(map.offset_of(900'000), 200u + 125u);
  EXPECT_EQ(map.extent_bytes(), 200u + 125u + 100u);
}

TEST(PlotAxis, TicksAreRound) {
  EXPECT_EQ(byte_ticks(10 * kGiB, 5),
            (std::vector<std::uint64_t>{0, 2 * kGiB, 4 * kGiB, 6 * kGiB, 8 * kGiB, 10 * kGiB}));
  EXPECT_EQ(decimal_ticks(450, 5), (std::vector<std::uint64_t>{0, 100, 200, 300, 400}));
  EXPECT_EQ(decimal_ticks(0, 5), (std::vector<std::uint64_t>{0}));
}

}  // namespace
}  // namespace sluice::replay
