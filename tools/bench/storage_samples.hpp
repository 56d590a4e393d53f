// The results of the rounds of `sluice bench storage`, and the search for fio's fastest setting.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {

// The rates of one subject (our engine, or fio at one setting) in one mix, one per round.
class StorageSamples {
 public:
  void add(const StorageRate& rate);
  bool empty() const { return bytes_per_s_.empty(); }
  double bytes_per_s() const;     // the median
  double cpu_s_per_byte() const;  // the median
  // This subject's rate / the other's in the same round, one ratio per round. For the CPU:
  // time per byte.
  std::vector<double> ratios(const StorageSamples& yardstick) const;
  std::vector<double> cpu_ratios(const StorageSamples& yardstick) const;
  // Saves PREFIX_gib_per_s, PREFIX_cpu_ms_per_gib and PREFIX_rounds_gib_per_s.
  void save(const std::string& prefix, nlohmann::json& figures) const;

 private:
  std::vector<double> bytes_per_s_;
  std::vector<double> cpu_s_per_byte_;
};

struct FioSetting {
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 0;
  bool operator==(const FioSetting&) const = default;
};

// The settings to try: blocks of 256 KiB to 1 MiB, 8 to 32 in flight.
std::vector<FioSetting> fio_sweep_settings();

struct SweptSetting {
  FioSetting setting;
  StorageRate rate;  // over all passes
};

// Runs `measure` at every setting, in `passes` passes over all of them, so that drift
// affects all alike.
std::vector<SweptSetting> sweep_fio(const std::vector<FioSetting>& settings, int passes,
                                    const std::function<StorageRate(const FioSetting&)>& measure);
// The setting with the highest rate. Precondition: swept is not empty.
const SweptSetting& fastest(const std::vector<SweptSetting>& swept);

}  // namespace sluice::bench
