// `sluice doctor`: this machine's rates, measured; each failure with its fix; the measurements
// saved as the hardware profile that `sluice plan` uses.
#pragma once

#include <ostream>
#include <string>

#include "tools/doctor/measure.hpp"

namespace sluice::doctor {

struct DoctorOptions {
  MeasureOptions measure;    // kernels and device given by the caller
  bool json = false;         // one event per line, else text for people
  std::string profile_path;  // where the profile goes; empty: it is not saved
  // The new profile also replaces a saved one of the same machine that has better rates.
  bool replaces_better = false;
};

// How much better the rates of a saved profile are than those measured now: the geometric mean of
// their ratios. A busy machine measures low, so a saved profile above kBetterProfile is kept.
inline constexpr double kBetterProfile = 1.1;
double rates_ratio(const planner::HardwareProfile& saved, const planner::HardwareProfile& measured);

// Events: {"event":"doctor","check":"io_uring","ok":true,"value":…,"detail":…,"fix":…} for each
// check (fix only where ok is false), then one
// {"event":"doctor","check":"measure","ok":…,"value":{profile},…}. Returns the exit status: 0, also
// where checks fail (saying so is its work). 2: the storage directory cannot be used or the profile
// cannot be saved, so nothing was saved; 3: a measurement failed. Both are reported like checks.
int run_doctor(const DoctorOptions& options, std::ostream& out);

}  // namespace sluice::doctor
