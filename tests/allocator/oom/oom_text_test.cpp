#include "allocator/oom/oom_text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/allocator/oom/three_steps.hpp"

namespace sluice::allocator {
namespace {

TEST(OomText, IsShortAndNamesTheCauseAndTheLargestSites) {
  record::MemoryRecorder recorder(10000);
  const OomFixture setup(counting(64), 40 * kPage, {.recorder = &recorder});
  std::vector<std::byte*> blocks;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const std::uint32_t site = recorder.intern("layers." + std::to_string(i) + ".attention.qkv");
    setup.get(kPage + i * 512, i % 2 == 0 ? setup.a : setup.b,
              static_cast<Category>(i % kCategoryCount), site);
  }
  const auto report = setup.fail(16 * kPage, setup.a, Category::kActivation, 7);
  const OomFixes fixes = find_fixes(*report);
  for (const OomFix& fix : fixes.verified()) EXPECT_TRUE(fix.is_least) << fix.text;
  const std::string text = oom_text(*report, &fixes);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 45) << text;
  for (const char* part :
       {"cause: cap", "layers.29.attention.qkv", "24 others", "cap of tier device",
        "raise the cap of tier device to", "blocks of all that is live"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(OomJson, ReadsBackWithTheReportsNumbers) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  const OomFixes fixes = find_fixes(*report);
  const nlohmann::json event = nlohmann::json::parse(oom_json(*report, &fixes).dump());
  EXPECT_EQ(event.at("event"), "out_of_memory");
  EXPECT_EQ(event.at("cause"), "cap");
  EXPECT_EQ(event.at("request").at("bytes"), 3 * kPage);
  EXPECT_EQ(event.at("request").at("site"), "last");
  EXPECT_EQ(event.at("limits").at("tier_cap_bytes"), 8 * kPage);
  EXPECT_TRUE(event.at("limits").at("category_cap_bytes").is_null());
  EXPECT_EQ(event.at("totals").at("live_bytes"), report->live_bytes);
  std::uint64_t by_category = 0;
  for (const auto& [name, bytes] : event.at("live_by_category").items()) {
    by_category += bytes.get<std::uint64_t>();
  }
  EXPECT_EQ(by_category, report->live_bytes);
  EXPECT_EQ(event.at("live_by_site").size(), report->sites.size());
  EXPECT_EQ(event.at("streams").size(), report->streams.size());
  EXPECT_EQ(event.at("fixes").at("tried").size(), fixes.tried.size());
  EXPECT_EQ(event.at("fixes").at("tried").at(0).at("change"), "larger_cap");
  EXPECT_TRUE(oom_json(*report).at("fixes").is_null());
}

}  // namespace
}  // namespace sluice::allocator
