// Assigns every idle moment of the compute lane in a pass to the lane that it waited for.
//
// The inputs are the times at which each instruction ran, and `deps`. A wait ends with the last
// instruction that it waited for. While that one ran, its lane is the cause. Before that, the cause
// is the instruction for which it waited itself, and so on back to the beginning of the wait. So a
// copy to the device that waits for a read counts as storage, not as link.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::runtime {

// kHandOver: the awaited instruction had ended, or the pass had begun, but the next instruction had
// not begun. Threads wake in this time.
// kUpdatePass: an update that is a pass of its own, apart from this one (a drain, a redo).
// kUnexplained: time that no instruction accounts for.
enum class StallCause : std::uint8_t {
  kUpload,
  kDownload,
  kStorageRead,
  kStorageWrite,
  kOptimizer,
  kComm,
  kHandOver,
  kUpdatePass,
  kUnexplained,
};
inline constexpr std::size_t kStallCauseCount = 9;
std::string_view stall_cause_name(StallCause cause);

struct Stalls {
  double compute_s = 0;  // the compute lane ran
  std::array<double, kStallCauseCount> by_cause_s{};
  void add(StallCause cause, double seconds) {
    by_cause_s[static_cast<std::size_t>(cause)] += seconds;
  }
  double total_s() const;  // of all causes: the time of the pass beyond compute_s
};

// times: begin and end of each instruction by id, ns; unused for Releases. The pass ran from
// begin_ns to end_ns.
Stalls stalls_of_pass(const schedule::Schedule& schedule,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& times,
                      std::int64_t begin_ns, std::int64_t end_ns);

}  // namespace sluice::runtime
