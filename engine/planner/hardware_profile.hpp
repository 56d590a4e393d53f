// What a machine does per second, measured once (`sluice doctor`) and saved: the planner's times
// come from here and never from a fresh measurement, so that a plan is a function of its inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/planner/operation_times.hpp"

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
  // What each further transfer of 256 KiB under way adds to the rate of one, up to the bandwidth.
  double storage_overlap = 0.3;
  double gemm_f32_flops_per_s = 8e10;  // a large matrix product on all cores
  double gemm_bf16_flops_per_s = 8e10;
  // What each core beyond the first adds to a large product, of what one does alone.
  double core_scaling = 1.0;
  double adam_params_per_s = 4e8;   // bf16 gradient and weight, fp32 states; all cores
  double launch_overhead_s = 1e-5;  // one empty Stream::launch, queued back to back
  double hand_over_s = 2e-5;        // from the end of a stream's work to the start of another's
  // At most one for each operation and dtype. What has none is priced by the rates above.
  std::vector<OperationGrid> operations;
  // What the machine's GPU does, where one was measured (backend "cuda"): its memory, products,
  // updates, launches and hand-overs; single_core_copy_bytes_per_s is that of its link, the slower
  // way. What is the host's business (cores, storage) says nothing there.
  std::shared_ptr<const HardwareProfile> gpu;
  // Of a GPU that was never measured: those of a small one, low on purpose.
  HardwareProfile gpu_or_default() const;

  // Null where there is none; valid until `operations` changes.
  const OperationGrid* find(TimedOperation operation, DType dtype) const;
};

// JSON, one object; numbers round-trip.
std::string to_json(const HardwareProfile& profile);
// InputError naming `source`, the key and what would be right. Every key of the format must be
// there, and no other; rates are finite and positive, at most kMaxRate.
HardwareProfile profile_from_json(const std::string& text, const std::string& source);

// Files of at most 1 MiB. InputError where it is missing or wrong.
HardwareProfile load_profile(const std::string& path);
// Replaces the file whole (written beside it, then renamed); makes the directories. IoError.
void save_profile(const HardwareProfile& profile, const std::string& path);

// $XDG_CACHE_HOME/sluice/hardware.json, else $HOME/.cache/sluice/hardware.json; empty where neither
// variable is set to an absolute path (XDG base directory specification).
std::string default_profile_path();
// The saved profile where there is one that can be used, else the default profile. A saved one that
// is damaged or of another version is a cache that is passed over: a warning in the log names it.
HardwareProfile load_profile_or_default(const std::string& path);

}  // namespace sluice::planner
