// The machines on paper: each can be planned for, and says where its figures come from.
#include "engine/planner/price/bundled_profiles.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::planner {
namespace {

using nlohmann::json;

const std::string kDirectory = SLUICE_HARDWARE_PROFILES;

void expect_sources(const json& machine, const std::string& where) {
  for (const auto& [key, value] : machine.items()) {
    if (!value.is_number() || key == "version") continue;
    EXPECT_TRUE(machine.at("sources").contains(key)) << where << key;
  }
  for (const auto& [key, text] : machine.at("sources").items()) {
    EXPECT_TRUE(machine.contains(key)) << where << key;
    const auto source = text.get<std::string>();
    EXPECT_GT(source.size(), 5u) << where << key;
    const std::string measured = "measured: ";
    if (!source.starts_with(measured)) continue;
    const std::string page = source.substr(measured.size(), source.find(',') - measured.size());
    EXPECT_TRUE(std::filesystem::exists(kDirectory + "/../../" + page)) << where << key;
  }
  // Rates of kernels are nobody's data sheet.
  if (!machine.at("operations").empty()) {
    EXPECT_TRUE(machine.at("sources").contains("operations")) << where;
  }
}

TEST(BundledProfiles, EveryFigureHasItsSource) {
  for (const std::string& name : profile_names(kDirectory)) {
    std::ifstream file(kDirectory + "/" + name + ".json");
    const json machine = json::parse(file);
    expect_sources(machine, name + ": ");
    expect_sources(machine.at("gpu"), name + ": gpu.");
  }
}

TEST(BundledProfiles, EachStatesItsMemoriesAndRates) {
  const std::vector<std::string> names = profile_names(kDirectory);
  EXPECT_EQ(names, (std::vector<std::string>{"dgx-a100", "dgx-h100", "h100-512g-4nvme",
                                             "h200-128g-1nvme", "rtx4090-256g-12nvme",
                                             "rtx4090-64g-1nvme", "rtx5090-192g-1nvme"}));
  for (const std::string& name : names) {
    const HardwareProfile machine = load_named_profile(name, kDirectory);
    ASSERT_NE(machine.gpu, nullptr) << name;
    EXPECT_GT(machine.gpu->memory_bytes, 20 * kGiB) << name;
    EXPECT_GE(machine.memory_bytes, 64 * kGiB) << name;
    EXPECT_GT(machine.storage_bytes, 0u) << name;
    EXPECT_GT(machine.storage_tbw, 0) << name;
    EXPECT_GT(machine.gpu->h2d_bytes_per_s, 1e9) << name;
    EXPECT_GT(machine.gpu->d2h_bytes_per_s, 1e9) << name;
    // Less than the data sheet promises.
    EXPECT_LT(machine.gpu->gemm_bf16_flops_per_s, machine.gpu->peak_bf16_flops_per_s) << name;
    EXPECT_EQ(to_json(profile_from_json(to_json(machine), name)), to_json(machine));
  }
}

TEST(BundledProfiles, DrivesAddUp) {
  const HardwareProfile one = load_named_profile("rtx4090-64g-1nvme", kDirectory);
  const HardwareProfile twelve = load_named_profile("rtx4090-256g-12nvme", kDirectory);
  EXPECT_EQ(twelve.storage_drives, 12);
  EXPECT_DOUBLE_EQ(twelve.storage_read_bytes_per_s, 12 * one.storage_read_bytes_per_s);
  EXPECT_DOUBLE_EQ(twelve.storage_tbw, 12 * one.storage_tbw);
}

TEST(BundledProfiles, ANameThatIsNoneListsThoseThereAre) {
  try {
    load_named_profile("rtx4090", kDirectory);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("rtx4090-64g-1nvme"), std::string::npos);
  }
  EXPECT_THROW(load_named_profile("./rtx4090-64g-1nvme", kDirectory), InputError);
  EXPECT_EQ(load_named_profile(kDirectory + "/rtx4090-64g-1nvme.json", "nowhere").cores, 16);
}

}  // namespace
}  // namespace sluice::planner
