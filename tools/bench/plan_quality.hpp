// `sluice bench plan --quality`: automatic plans compared with plans with settings fixed by hand.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

// The models and machines that measure_plan_quality knows.
int plan_quality_pairs();

// For the models with a machine (share/hardware) from number `first` to `last`: the automatic plan
// compared with `settings` random complete settings, and compared with as many random pairs of
// single ones. Seeded.
// {"pairs":[{pair, step_s, complete:{settings, fits, most_gain, setting, worst_cpu_s, slow},
//   two:{the same}}], and of all pairs complete_most_gain, complete_worst_cpu_s, two_most_gain}. A
// gain is the share by which the automatic plan takes longer than the fastest by hand. slow: the
// number of settings whose plan takes over 0.5 CPU seconds.
nlohmann::json measure_plan_quality(int first, int last, int settings);

}  // namespace sluice::bench
