#include "engine/planner/price/hardware_profile.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/set_variable.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

planner::HardwareProfile sample() {
  planner::HardwareProfile profile;
  profile.cpu_name = "A processor";
  profile.cores = 7;
  profile.storage_read_bytes_per_s = 1.0 / 3.0 * 1e9;  // needs all digits
  profile.operations = {
      {planner::TimedOperation::kGemmNT,
       DType::kBF16,
       {{{16, 64}, {32, 512}, {8}}},
       {1e-6, 2e-6, 3e-6, 1.0 / 3}},
      {planner::TimedOperation::kStorageRead, DType::kU8, {{{4096}, {1}, {1}}}, {2e-4}}};
  return profile;
}

std::string refusal(const std::string& text) {
  return message_of<InputError>([&] { planner::profile_from_json(text, "given.json"); });
}

TEST(HardwareProfile, RoundTrips) {
  const std::string text = planner::to_json(sample());
  EXPECT_EQ(planner::to_json(planner::profile_from_json(text, "x")), text);
  EXPECT_EQ(planner::profile_from_json(text, "x").storage_read_bytes_per_s,
            sample().storage_read_bytes_per_s);
  const planner::HardwareProfile read = planner::profile_from_json(text, "x");
  const planner::OperationGrid* const grid =
      read.find(planner::TimedOperation::kGemmNT, DType::kBF16);
  ASSERT_NE(grid, nullptr);
  EXPECT_EQ(grid->seconds.at(3), 1.0 / 3);
  EXPECT_EQ(grid->axes[1].at(1), 512);
  EXPECT_EQ(read.find(planner::TimedOperation::kGemmNT, DType::kF32), nullptr);
}

TEST(HardwareProfile, AGpuIsAProfileWithinTheMachines) {
  planner::HardwareProfile profile = sample();
  EXPECT_GT(profile.gpu_or_default().gemm_bf16_flops_per_s, profile.gemm_bf16_flops_per_s);
  planner::HardwareProfile gpu = sample();
  gpu.backend = "cuda";
  gpu.gemm_bf16_flops_per_s = 7e14;
  profile.gpu = std::make_shared<const planner::HardwareProfile>(gpu);
  const std::string text = planner::to_json(profile);
  const planner::HardwareProfile read = planner::profile_from_json(text, "x");
  EXPECT_EQ(planner::to_json(read), text);
  EXPECT_EQ(read.gpu_or_default().gemm_bf16_flops_per_s, 7e14);

  json wrong = json::parse(text);
  wrong["gpu"].erase("cores");
  EXPECT_TRUE(holds(refusal(wrong.dump()), "gpu.cores"));
  wrong = json::parse(text);
  wrong["gpu"]["backend"] = "host";
  EXPECT_TRUE(holds(refusal(wrong.dump()), "gpu.backend"));
  wrong = json::parse(text);
  wrong["gpu"]["gpu"] = wrong["gpu"];
  EXPECT_TRUE(holds(refusal(wrong.dump()), "is not a key"));
  for (const std::string key : {"gpu", "rank_links"}) {
    wrong = json::parse(text);
    wrong[key] = 3;
    EXPECT_TRUE(holds(refusal(wrong.dump()), ": " + key + " must be a JSON object"));
  }
}

// Profiles of earlier versions have none of them.
TEST(HardwareProfile, CapacitiesEnduranceAndSourcesMayBeMissing) {
  planner::HardwareProfile profile = sample();
  const std::string before = planner::to_json(profile);
  for (const char* key :
       {"memory_bytes", "storage_bytes", "storage_drives", "storage_tbw", "h2d_bytes_per_s",
        "d2h_bytes_per_s", "peak_bf16_flops_per_s", "sources"}) {
    EXPECT_FALSE(json::parse(before).contains(key)) << key;
  }
  profile.memory_bytes = 3;
  profile.storage_bytes = 4;
  profile.storage_drives = 2;
  profile.storage_tbw = 1200.5;
  profile.h2d_bytes_per_s = 5e6;
  profile.d2h_bytes_per_s = 6e6;
  profile.peak_bf16_flops_per_s = 7e6;
  profile.sources = {{"storage_tbw", "a data sheet"}};
  const std::string text = planner::to_json(profile);
  const planner::HardwareProfile read = planner::profile_from_json(text, "x");
  EXPECT_EQ(planner::to_json(read), text);
  EXPECT_EQ(read.storage_tbw, 1200.5);
  EXPECT_EQ(read.sources, profile.sources);
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"memory_bytes", -1},
                                                 {"storage_drives", 0},
                                                 {"storage_tbw", "much"},
                                                 {"h2d_bytes_per_s", 0},
                                                 {"sources", {{"cores", 7}}}}) {
    json wrong = json::parse(text);
    wrong[key] = value;
    EXPECT_NE(refusal(wrong.dump()).find(key), std::string::npos) << refusal(wrong.dump());
  }
}

TEST(HardwareProfile, EveryKeyIsNeededAndNoOtherIsTaken) {
  const json whole = json::parse(planner::to_json(sample()));
  for (const auto& [key, value] : whole.items()) {
    json less = whole;
    less.erase(key);
    const std::string message = refusal(less.dump());
    EXPECT_TRUE(holds(message, key));
    EXPECT_TRUE(holds(message, "given.json"));
  }
  json more = whole;
  more["storage_red"] = 1;
  EXPECT_TRUE(holds(refusal(more.dump()), "'storage_red'"));
}

TEST(HardwareProfile, ValuesOutOfBoundsAndTextThatIsNoProfileAreRefused) {
  const json whole = json::parse(planner::to_json(sample()));
  for (const auto& [key, value] : whole.items()) {
    for (const json& wrong : {json(nullptr), json(-1), json(0), json(1e300), json::array({1}),
                              json("x"), json(false)}) {
      json changed = whole;
      changed[key] = wrong;
      if (key == "cpu_name" && wrong.is_string()) continue;
      EXPECT_TRUE(holds(refusal(changed.dump()), key)) << wrong;
    }
  }
  const auto refused = [&](const char* key, const json& wrong) {
    json changed = whole;
    changed["operations"][0][key] = wrong;
    EXPECT_TRUE(holds(refusal(changed.dump()), "operations[0]." + std::string(key)));
  };
  refused("operation", "gemm");
  refused("dtype", "F16");
  for (const char* axes : {"[[16],[1]]", "[[16,64],[32,512],[]]", "[[64,16],[32,512],[8]]",
                           "[[16,64],[0,512],[8]]", "[[16,1.5],[32,512],[8]]", "7"}) {
    refused("axes", json::parse(axes));
  }
  for (const char* seconds : {"[1,2,3]", "[1,2,3,0]", "[1,2,3,\"4\"]", "[1,2,3,1e9]", "{}"}) {
    refused("seconds", json::parse(seconds));
  }
  json twice = whole;
  twice["operations"].push_back(twice["operations"][1]);
  EXPECT_TRUE(holds(refusal(twice.dump()), "operations[2].operation"));
  for (const char* text :
       {"", "{", "[]", "12", "nul", "{\"format\":\"sluice-hardware-profile\",\"version\":1}"}) {
    EXPECT_TRUE(holds(refusal(text), "given.json"));
  }
}

// Every rate of a machine, of its GPU and of its links.
TEST(HardwareProfile, ARateBelowTheSlowestMachineIsRefused) {
  planner::HardwareProfile profile = sample();
  profile.h2d_bytes_per_s = profile.d2h_bytes_per_s = profile.peak_bf16_flops_per_s = 1e12;
  profile.backend = "cuda";
  profile.gpu = std::make_shared<const planner::HardwareProfile>(profile);
  profile.backend = "host";
  profile.rank_links.emplace();
  const json whole = json::parse(planner::to_json(profile));
  std::size_t rates = 0;
  for (const std::string part : {"", "/gpu", "/rank_links"}) {
    for (const auto& [key, value] : whole.at(json::json_pointer(part)).items()) {
      if (!key.ends_with("_per_s")) continue;
      SCOPED_TRACE(part + "/" + key);
      ++rates;
      const double least = key.ends_with("params_per_s") ? 1e4 : 1e6;
      json changed = whole;
      json& rate = changed.at(json::json_pointer(part + "/" + key));
      rate = least;
      EXPECT_NO_THROW(planner::profile_from_json(changed.dump(), "given.json"));
      for (const double less : {0.99 * least, 1.0, 1e-300}) {
        rate = less;
        const std::string words = refusal(changed.dump());
        EXPECT_TRUE(holds(words, "given.json")) << words;
        EXPECT_TRUE(holds(words, key + " must be a number from " + json(least).dump())) << words;
      }
    }
  }
  EXPECT_EQ(rates, 11u + 11u + 3u);
}

TEST(HardwareProfile, SavesWholeAndLoadsOrFallsBackToTheDefault) {
  const TempDirectory directory;
  const std::string path = directory.file("new/sub/hardware.json");
  EXPECT_EQ(planner::load_profile_or_default(path).cpu_name, planner::HardwareProfile{}.cpu_name);
  EXPECT_EQ(planner::load_profile_or_default("").cores, planner::HardwareProfile{}.cores);
  EXPECT_THROW(planner::load_profile(path), InputError);
  planner::save_profile(sample(), path);
  planner::save_profile(sample(), path);
  EXPECT_EQ(planner::load_profile_or_default(path).cores, 7);
  // The folder holds no other file.
  const auto parent = std::filesystem::path(path).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parent), {}), 1);
  std::ofstream(path) << "{";
  EXPECT_THROW(planner::load_profile(path), InputError);
  std::string warning;
  set_log_sink([&](LogLevel, const std::string& text) { warning += text; });
  EXPECT_EQ(planner::load_profile_or_default(path).cores, planner::HardwareProfile{}.cores);
  set_log_sink({});
  EXPECT_TRUE(holds(warning, path));
  EXPECT_TRUE(holds(warning, "default machine"));
  std::ofstream(path) << std::string(2 << 20, ' ');
  EXPECT_THROW(planner::load_profile(path), InputError);
  EXPECT_THROW(planner::save_profile(sample(), path + "/below/a/file"), IoError);
}

TEST(HardwareProfile, ItsPlaceFollowsTheXdgVariables) {
  const SetVariable absolute("XDG_CACHE_HOME", "/somewhere");
  EXPECT_EQ(planner::default_profile_path(), "/somewhere/sluice/hardware.json");
  const SetVariable relative("XDG_CACHE_HOME", "relative");  // the specification: to be ignored
  EXPECT_FALSE(holds(planner::default_profile_path(), "relative"));
}

}  // namespace
}  // namespace sluice::testing
