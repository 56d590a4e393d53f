// A machine's rates, measured once (`sluice doctor`) and saved. The planner takes its times from
// here and never from a fresh measurement, so that a plan is a function of its inputs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/price/operation_times.hpp"
#include "engine/planner/price/rank_links.hpp"

namespace sluice::planner {

// The values here are the default profile: those of a small virtual machine (2 cores with AVX2, one
// memory channel's share, a network or virtual disk), rounded to one digit. They are low on
// purpose: a plan for a machine that was never measured should promise too little.
struct HardwareProfile {
  std::string backend = "host";  // "host" or "cuda"
  std::string cpu_name = "unmeasured";
  std::int32_t cores = 2;
  // Triad a[i] = b[i] + s * c[i] on all cores; two reads and a write of 4 bytes each are counted.
  double memory_bandwidth_bytes_per_s = 2e10;
  // memcpy by one thread: bytes copied (each is read once and written once).
  double single_core_copy_bytes_per_s = 6e9;
  // Through the storage engine, requests of 2 MiB, 16 at once; duplex: as many bytes read as
  // written, counted together.
  double storage_read_bytes_per_s = 1e9;
  double storage_write_bytes_per_s = 8e8;
  double storage_duplex_bytes_per_s = 1e9;
  double storage_latency_s = 2e-4;  // one read of 4 KiB, alone
  // The rate that each further transfer of 256 KiB in flight adds to one alone, up to the
  // bandwidth.
  double storage_overlap = 0.3;
  double gemm_f32_flops_per_s = 8e10;  // a large matrix product on all cores
  double gemm_bf16_flops_per_s = 8e10;
  // The rate that each core beyond the first adds to a large product, relative to one core alone.
  double core_scaling = 1.0;
  double adam_params_per_s = 4e8;   // bf16 gradient and weight, fp32 states; all cores
  double launch_overhead_s = 1e-5;  // one empty Stream::launch, queued back to back
  double hand_over_s = 2e-5;        // from the end of a stream's work to the start of another's
  // At most one for each operation and dtype. Operations without one are priced by the rates above.
  std::vector<OperationGrid> operations;
  // The rates of the machine's GPU, if one was measured (backend "cuda"): its memory, products,
  // updates, launches and hand-overs. Its single_core_copy_bytes_per_s is that of its link, in the
  // slower direction. The host's figures (cores, storage) mean nothing there.
  std::shared_ptr<const HardwareProfile> gpu;

  // The figures below may be missing from a file, and 0 means unknown. Doctor does not measure
  // them; the profiles of share/hardware have them.
  std::uint64_t memory_bytes = 0;   // of the machine, and in `gpu` of the device
  std::uint64_t storage_bytes = 0;  // capacity of all drives
  std::int64_t storage_drives = 0;  // alike, striped over
  double storage_tbw = 0;           // rated endurance of all drives, in units of 1e12 bytes written
  // Of a GPU's link, by direction. Without them both take single_core_copy_bytes_per_s.
  double h2d_bytes_per_s = 0;
  double d2h_bytes_per_s = 0;
  // The manufacturer's rate of dense bf16 products with fp32 sums.
  double peak_bf16_flops_per_s = 0;
  // The links of several ranks on machines like this one; none: nobody described them.
  std::optional<RankLinks> rank_links;
  // The origin of each figure, by its key. Empty for a measured profile.
  std::map<std::string, std::string> sources;

  // The rates of a small GPU, low on purpose, for a GPU that was never measured.
  HardwareProfile gpu_or_default() const;
  RankLinks rank_links_or_default() const { return rank_links.value_or(RankLinks{}); }
  // The origin of these links, for people.
  std::string rank_links_source() const;

  // Null if there is none; valid until `operations` changes.
  const OperationGrid* find(TimedOperation operation, DType dtype) const;
};

// JSON, one object; numbers round-trip.
std::string to_json(const HardwareProfile& profile);
// Throws InputError that names `source`, the key and the right value. Every key of the format must
// be there, and no other; rates are finite, at least those of the slowest machine there is (1 MB/s, 1
// Mflop/s).
HardwareProfile profile_from_json(const std::string& text, const std::string& source);

// Files of at most 1 MiB. InputError if it is missing or wrong.
HardwareProfile load_profile(const std::string& path);
// Replaces the file whole (written next to it, then renamed); makes the directories. IoError.
void save_profile(const HardwareProfile& profile, const std::string& path);

// $XDG_CACHE_HOME/sluice/hardware.json, else $HOME/.cache/sluice/hardware.json; empty where neither
// variable is set to an absolute path (XDG base directory specification).
std::string default_profile_path();
// The saved profile if there is one that can be used, else the default profile. A saved one that is
// damaged or of another version is passed over, as a cache is: a warning in the log names it.
HardwareProfile load_profile_or_default(const std::string& path);

}  // namespace sluice::planner
