#include "tools/bench/storage_samples.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {
namespace {

std::vector<double> divided(const std::vector<double>& values,
                            const std::vector<double>& yardsticks) {
  SLUICE_CHECK(values.size() == yardsticks.size() && !values.empty());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ratios.push_back(yardsticks[i] > 0 ? values[i] / yardsticks[i] : 0);
  }
  return ratios;
}

}  // namespace

void StorageSamples::add(const StorageRate& rate) {
  bytes_per_s_.push_back(rate.bytes_per_s());
  cpu_s_per_byte_.push_back(rate.cpu_s_per_byte());
}

double StorageSamples::bytes_per_s() const {
  return median(bytes_per_s_);
}

double StorageSamples::cpu_s_per_byte() const {
  return median(cpu_s_per_byte_);
}

std::vector<double> StorageSamples::ratios(const StorageSamples& yardstick) const {
  return divided(bytes_per_s_, yardstick.bytes_per_s_);
}

std::vector<double> StorageSamples::cpu_ratios(const StorageSamples& yardstick) const {
  return divided(cpu_s_per_byte_, yardstick.cpu_s_per_byte_);
}

void StorageSamples::save(const std::string& prefix, nlohmann::json& figures) const {
  constexpr auto kBytesPerGib = static_cast<double>(kGiB);
  figures[prefix + "_gib_per_s"] = bytes_per_s() / kBytesPerGib;
  figures[prefix + "_cpu_ms_per_gib"] = cpu_s_per_byte() * kBytesPerGib * 1e3;
  auto& rounds = figures[prefix + "_rounds_gib_per_s"];
  for (const double rate : bytes_per_s_) rounds.push_back(rate / kBytesPerGib);
}

std::vector<FioSetting> fio_sweep_settings() {
  std::vector<FioSetting> settings;
  for (const std::uint64_t block_bytes : {256 * kKiB, 512 * kKiB, 1 * kMiB}) {
    for (const std::uint32_t depth : {8u, 16u, 32u}) settings.push_back({block_bytes, depth});
  }
  return settings;
}

std::vector<SweptSetting> sweep_fio(const std::vector<FioSetting>& settings, int passes,
                                    const std::function<StorageRate(const FioSetting&)>& measure) {
  std::vector<SweptSetting> swept;
  for (const FioSetting& setting : settings) swept.push_back({setting, {}});
  for (int pass = 0; pass < passes; ++pass) {
    for (SweptSetting& one : swept) {
      const StorageRate rate = measure(one.setting);
      one.rate.bytes += rate.bytes;
      one.rate.seconds += rate.seconds;
      one.rate.cpu_seconds += rate.cpu_seconds;
    }
  }
  return swept;
}

const SweptSetting& fastest(const std::vector<SweptSetting>& swept) {
  SLUICE_CHECK(!swept.empty());
  return *std::max_element(swept.begin(), swept.end(),
                           [](const SweptSetting& a, const SweptSetting& b) {
                             return a.rate.bytes_per_s() < b.rate.bytes_per_s();
                           });
}

}  // namespace sluice::bench
