#include "tools/doctor/doctor.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "collectives/local/local_group.hpp"
#include "device/host/host_device.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/doctor/checks.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

TEST(DoctorChecks, TheSelectedWordIsTheBracketedOne) {
  EXPECT_EQ(doctor::selected_word("always [madvise] never\n"), "madvise");
  EXPECT_EQ(doctor::selected_word("[never]"), "never");
  for (const char* text : {"", "always madvise", "a] [b", "["})
    EXPECT_EQ(doctor::selected_word(text), "") << text;
}

TEST(DoctorChecks, CpuFeaturesAreWholeWordsOfTheFirstProcessor) {
  EXPECT_EQ(
      doctor::cpu_features("vendor: x\nflags\t\t: fpu avx2 avx512_bf16x fma\n\nflags: avx512f\n"),
      (std::vector<std::string>{"avx2", "fma"}));
  EXPECT_EQ(doctor::cpu_features("Features : fp asimd bf16"),
            (std::vector<std::string>{"asimd", "bf16"}));
  EXPECT_TRUE(doctor::cpu_features("flags").empty());
}

TEST(DoctorChecks, EachFailureHasItsFixAndEachSuccessNone) {
  const TempDirectory directory;
  for (const std::string& place : {directory.path().string(), directory.file("absent")}) {
    std::set<std::string> names;
    for (const doctor::DoctorCheck& check : doctor::run_checks(place)) {
      EXPECT_TRUE(names.insert(check.name).second) << check.name;
      EXPECT_EQ(check.ok, check.fix.empty()) << check.name;
      EXPECT_FALSE(check.detail.empty()) << check.name;
      if (place == directory.file("absent") &&
          (check.name == "direct_io" || check.name == "disk")) {
        EXPECT_FALSE(check.ok) << check.name;
      }
    }
    EXPECT_EQ(names.size(), 10u);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Makes every rate that the doctor compares 100 times as high: more than any noise does, and still
// a rate that a profile may have.
void raise_rates(planner::HardwareProfile& profile) {
  for (double* rate : {&profile.memory_bandwidth_bytes_per_s, &profile.single_core_copy_bytes_per_s,
                       &profile.storage_read_bytes_per_s, &profile.storage_write_bytes_per_s,
                       &profile.gemm_f32_flops_per_s, &profile.gemm_bf16_flops_per_s,
                       &profile.adam_params_per_s}) {
    *rate *= 100;
  }
}

class DoctorRun : public ::testing::Test {
 protected:
  DoctorRun()
      : all_(kernels::make_host_kernels({})),
        one_core_(kernels::make_host_kernels({.threads = 1})),
        device_(device::make_host_device({})) {
    options_.json = true;
    options_.measure.device = device_.get();
    options_.measure.disk.directory = directory_.path().string();
    options_.measure.rounds = 2;
    options_.measure.seconds_each = 0.001;
    options_.measure.disk.file_bytes = 4 * kMiB;
    options_.measure.array_bytes = 4 * kMiB;
    options_.measure.kernel = {.all = all_.get(),
                               .one_core = one_core_.get(),
                               .seconds_each = 1e-6,
                               .state_bytes = 4 * kMiB,
                               .points_each_axis = 2};
    options_.profile_path = directory_.file("hardware.json");
  }
  json last_event(int expected_status) {
    std::stringstream out;
    EXPECT_EQ(doctor::run_doctor(options_, out), expected_status);
    json last;
    for (std::string line; std::getline(out, line);) {
      last = json::parse(line);
      EXPECT_EQ(last.at("event"), "doctor");
      EXPECT_EQ(last.contains("fix"), last.at("ok") == false);
    }
    return last;
  }

  TempDirectory directory_;
  std::unique_ptr<kernels::Kernels> all_;
  std::unique_ptr<kernels::Kernels> one_core_;
  std::unique_ptr<device::Device> device_;
  doctor::DoctorOptions options_;
};

TEST_F(DoctorRun, MeasuresAndSavesAProfileThatLoads) {
  const json event = last_event(0);
  EXPECT_EQ(event.at("check"), "measure");
  EXPECT_EQ(event.at("ok"), true);
  const planner::HardwareProfile profile = planner::load_profile(options_.profile_path);
  EXPECT_EQ(json::parse(planner::to_json(profile)), event.at("value"));
  EXPECT_EQ(profile.backend, "host");
  EXPECT_GT(profile.core_scaling, 0);
  // Every operation is measured: kernels in both dtypes, copies and transfers as bytes.
  for (std::size_t i = 0; i < planner::kTimedOperationCount; ++i) {
    const auto operation = static_cast<planner::TimedOperation>(i);
    const bool bytes = operation >= planner::TimedOperation::kCopy;
    EXPECT_EQ(profile.find(operation, DType::kU8) != nullptr, bytes) << i;
    EXPECT_EQ(profile.find(operation, DType::kF32) != nullptr, !bytes) << i;
    EXPECT_EQ(profile.find(operation, DType::kBF16) != nullptr, !bytes) << i;
  }
  // The profile alone is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
}

TEST_F(DoctorRun, AnnouncesEachMeasurement) {
  std::vector<std::string> told;
  options_.measure.begins = [&](const std::string& part) { told.push_back(part); };
  last_event(0);
  const auto rounds = static_cast<std::size_t>(options_.measure.rounds);
  ASSERT_EQ(told.size(), 3 * rounds);
  EXPECT_EQ(told.front(), "round 1 of " + std::to_string(rounds) + ": storage");
}

TEST_F(DoctorRun, LinksBetweenRanksAreMeasuredAndThoseBetweenMachinesStay) {
  last_event(0);
  planner::HardwareProfile better = planner::load_profile(options_.profile_path);
  EXPECT_FALSE(better.rank_links);
  raise_rates(better);
  planner::save_profile(better, options_.profile_path);
  options_.measure.links = {
      .make_group = [](int ranks) { return collectives::make_local_group(ranks, 60); },
      .rank_bytes = 64 * kKiB};
  std::size_t told = 0;
  options_.measure.begins = [&](const std::string& part) { told += holds(part, "links"); };
  last_event(0);
  EXPECT_EQ(told, static_cast<std::size_t>(options_.measure.rounds));
  // The better rates are kept, and get the links that they lacked.
  planner::HardwareProfile profile = planner::load_profile(options_.profile_path);
  EXPECT_EQ(profile.memory_bandwidth_bytes_per_s, better.memory_bandwidth_bytes_per_s);
  ASSERT_TRUE(profile.rank_links);
  const planner::RankLinks measured = *profile.rank_links;
  const planner::RankLinks standard;
  EXPECT_GT(measured.latency_s, 0);
  EXPECT_LT(measured.latency_s, 1);
  EXPECT_GT(measured.bytes_per_s, 0);
  EXPECT_GT(measured.node_bytes_per_s, 0);
  EXPECT_NE(measured.bytes_per_s, standard.bytes_per_s);
  EXPECT_EQ(measured.network_bytes_per_s, standard.network_bytes_per_s);
  // A person described the machines that this one works with.
  profile.rank_links->network_bytes_per_s = 5e9;
  profile.rank_links->node_ranks = 2;
  profile.rank_links->bytes_per_s = 1e6;
  planner::save_profile(profile, options_.profile_path);
  options_.replaces_better = true;
  const json event = last_event(0);
  const planner::RankLinks kept = *planner::load_profile(options_.profile_path).rank_links;
  EXPECT_EQ(kept.network_bytes_per_s, 5e9);
  EXPECT_EQ(kept.node_ranks, 2);
  EXPECT_GT(kept.bytes_per_s, 1e6);
  EXPECT_EQ(event.at("value").at("rank_links").at("network_bytes_per_s"), 5e9);
}

TEST_F(DoctorRun, AGroupThatBreaksFailsTheMeasurement) {
  options_.measure.links.make_group = [](int ranks) {
    auto group = collectives::make_local_group(ranks, 60);
    group.back()->abort("the cable is out");
    return group;
  };
  const json event = last_event(3);
  EXPECT_TRUE(holds(event.at("detail"), "the cable is out"));
  EXPECT_FALSE(std::filesystem::exists(options_.profile_path));
}

TEST_F(DoctorRun, KeepsASavedProfileWithBetterRates) {
  last_event(0);
  planner::HardwareProfile better = planner::load_profile(options_.profile_path);
  raise_rates(better);
  planner::save_profile(better, options_.profile_path);
  const std::string kept = planner::to_json(better);
  const json event = last_event(0);
  EXPECT_TRUE(holds(event.at("detail"), "is kept"));
  EXPECT_EQ(planner::to_json(planner::load_profile(options_.profile_path)), kept);
  options_.replaces_better = true;
  last_event(0);
  EXPECT_NE(planner::to_json(planner::load_profile(options_.profile_path)), kept);
}

TEST_F(DoctorRun, ReplacesABetterProfileOfAnotherMachineAndADamagedOne) {
  last_event(0);
  planner::HardwareProfile other = planner::load_profile(options_.profile_path);
  raise_rates(other);
  other.cpu_name = "another processor";
  planner::save_profile(other, options_.profile_path);
  last_event(0);
  EXPECT_NE(planner::load_profile(options_.profile_path).cpu_name, other.cpu_name);
  std::ofstream(options_.profile_path) << "{";
  EXPECT_EQ(last_event(0).at("ok"), true);
  planner::load_profile(options_.profile_path);
}

// The GPU is measured through the device boundary alone, so the host device will do.
TEST_F(DoctorRun, AGpuIsMeasuredIntoAProfileOfItsOwn) {
  options_.measure.gpu = {.device = device_.get(),
                          .kernels = all_.get(),
                          .repeats = 2,
                          .array_bytes = 4 * kMiB,
                          .gemm_size = 64};
  const planner::HardwareProfile gpu = doctor::measure_gpu(options_.measure.gpu);
  EXPECT_EQ(gpu.cpu_name, device_->facts().name);
  EXPECT_GT(gpu.gemm_bf16_flops_per_s, 1e6);
  EXPECT_GT(gpu.adam_params_per_s, 1e5);
  EXPECT_GT(gpu.single_core_copy_bytes_per_s, 1e7);
  EXPECT_GE(gpu.hand_over_s, gpu.launch_overhead_s);
  EXPECT_EQ(device_->counters().live_bytes, 0u);
  // Kept next to the host's figures, as every figure that a plan needs.
  planner::HardwareProfile profile;
  planner::HardwareProfile cuda = gpu;
  cuda.backend = "cuda";
  profile.gpu = std::make_shared<const planner::HardwareProfile>(cuda);
  EXPECT_EQ(planner::to_json(planner::profile_from_json(planner::to_json(profile), "x")),
            planner::to_json(profile));
}

TEST_F(DoctorRun, AStorageDirectoryThatIsNotThereIsBadInput) {
  options_.measure.disk.directory = directory_.file("absent");
  const json event = last_event(2);
  EXPECT_TRUE(holds(event.at("detail"), "absent"));
  EXPECT_FALSE(std::filesystem::exists(options_.profile_path));
}

TEST_F(DoctorRun, AProfileThatCannotBeSavedIsBadInput) {
  options_.profile_path = "/proc/sluice/hardware.json";
  EXPECT_EQ(last_event(2).at("ok"), false);
}

TEST_F(DoctorRun, TextNamesTheChecksAndTheRates) {
  options_.json = false;
  std::stringstream out;
  EXPECT_EQ(doctor::run_doctor(options_, out), 0);
  for (const char* word : {"io_uring", "memlock", "storage duplex", "GFLOP/s", "hardware.json"}) {
    EXPECT_TRUE(holds(out.str(), word));
  }
}

}  // namespace
}  // namespace sluice::testing
