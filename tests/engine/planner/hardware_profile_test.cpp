#include "engine/planner/hardware_profile.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

HardwareProfile sample() {
  HardwareProfile profile;
  profile.cpu_name = "A processor";
  profile.cores = 7;
  profile.storage_read_bytes_per_s = 1.0 / 3.0 * 1e9;  // needs all digits
  profile.gemm_rates = {{512, 768, 3072, DType::kF32, 1.23456789e11},
                        {1, 2, 3, DType::kBF16, 5e10}};
  return profile;
}

std::string refusal(const std::string& text) {
  try {
    profile_from_json(text, "given.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

TEST(HardwareProfile, ReadsBackWhatItWrote) {
  const std::string text = to_json(sample());
  EXPECT_EQ(to_json(profile_from_json(text, "x")), text);
  EXPECT_EQ(profile_from_json(text, "x").storage_read_bytes_per_s,
            sample().storage_read_bytes_per_s);
  EXPECT_EQ(profile_from_json(text, "x").gemm_rates.at(1).dtype, DType::kBF16);
}

TEST(HardwareProfile, EveryKeyIsNeededAndNoOtherIsTaken) {
  const json whole = json::parse(to_json(sample()));
  for (const auto& [key, value] : whole.items()) {
    json less = whole;
    less.erase(key);
    const std::string message = refusal(less.dump());
    EXPECT_NE(message.find(key), std::string::npos) << key << ": " << message;
    EXPECT_NE(message.find("given.json"), std::string::npos);
  }
  json more = whole;
  more["storage_red"] = 1;
  EXPECT_NE(refusal(more.dump()).find("'storage_red'"), std::string::npos);
}

TEST(HardwareProfile, ValuesOutOfBoundsAreRefusedByName) {
  const json whole = json::parse(to_json(sample()));
  for (const auto& [key, value] : whole.items()) {
    for (const json& wrong : {json(nullptr), json(-1), json(0), json(1e300), json::array({1}),
                              json("x"), json(false)}) {
      json changed = whole;
      changed[key] = wrong;
      if (key == "cpu_name" && wrong.is_string()) continue;
      EXPECT_NE(refusal(changed.dump()).find(key), std::string::npos) << key << " = " << wrong;
    }
  }
  json changed = whole;
  changed["gemm_rates"][1]["m"] = 0;
  EXPECT_NE(refusal(changed.dump()).find("gemm_rates[1].m"), std::string::npos);
  changed = whole;
  changed["gemm_rates"][0]["dtype"] = "F16";
  EXPECT_NE(refusal(changed.dump()).find("gemm_rates[0].dtype"), std::string::npos);
}

TEST(HardwareProfile, TextThatIsNoProfileIsRefused) {
  for (const char* text :
       {"", "{", "[]", "12", "nul", "{\"format\":\"sluice-hardware-profile\",\"version\":2}"}) {
    EXPECT_NE(refusal(text).find("given.json"), std::string::npos) << text;
  }
}

TEST(HardwareProfile, SavesWholeAndLoadsOrFallsBackToTheDefault) {
  const TempDirectory directory;
  const std::string path = directory.file("new/sub/hardware.json");
  EXPECT_EQ(load_profile_or_default(path).cpu_name, HardwareProfile{}.cpu_name);
  EXPECT_EQ(load_profile_or_default("").cores, HardwareProfile{}.cores);
  EXPECT_THROW(load_profile(path), InputError);
  save_profile(sample(), path);
  save_profile(sample(), path);
  EXPECT_EQ(load_profile_or_default(path).cores, 7);
  // Nothing beside it.
  const auto parent = std::filesystem::path(path).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parent), {}), 1);
  std::ofstream(path) << "{";
  EXPECT_THROW(load_profile_or_default(path), InputError);
  std::ofstream(path) << std::string(2 << 20, ' ');
  EXPECT_THROW(load_profile(path), InputError);
  EXPECT_THROW(save_profile(sample(), path + "/below/a/file"), IoError);
}

TEST(HardwareProfile, ItsPlaceFollowsTheXdgVariables) {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const std::string before = cache == nullptr ? "" : cache;
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(default_profile_path(), "/somewhere/sluice/hardware.json");
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // the specification: to be ignored
  EXPECT_EQ(default_profile_path().find("relative"), std::string::npos);
  if (before.empty()) {
    ::unsetenv("XDG_CACHE_HOME");
  } else {
    ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
  }
}

}  // namespace
}  // namespace sluice::testing
