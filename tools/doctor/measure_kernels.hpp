// The times of every kernel that a step spends its time in, on a grid of sizes.
#pragma once

#include <cstdint>
#include <memory>

#include "base/units.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "kernels/kernels.hpp"

namespace sluice::doctor {

struct KernelOptions {
  kernels::Kernels* all = nullptr;       // on all cores
  kernels::Kernels* one_core = nullptr;  // the same on one
  double seconds_each = 0.002;           // of one point in one round, about
  // State kernels walk through this much memory, as training does; others repeat in place.
  std::uint64_t state_bytes = 128 * kMiB;
  std::size_t points_each_axis = 8;  // at most: the smallest
};

class KernelTrial {
 public:
  // The kernels must outlive the trial. A round runs on the calling thread and on the kernels' own
  // threads.
  explicit KernelTrial(const KernelOptions& options);
  ~KernelTrial();
  KernelTrial(const KernelTrial&) = delete;
  KernelTrial& operator=(const KernelTrial&) = delete;

  void measure_round();
  // Stores the medians of the rounds: both dtypes of every kernel in TimedOperation, norms as
  // RMSNorm, and the rates of products and AdamW that are shown to people. Preconditions: at least
  // one round, and profile.cores is set.
  void save(planner::HardwareProfile& profile) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::doctor
