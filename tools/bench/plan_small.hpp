// `sluice bench plan --small`: plans of small models compared with the best of all simple plans.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

// For `count` random models of at most 5 units, by seed from `first` on: the automatic plan
// compared with an exhaustive search over a tier for each of weights, gradients, optimizer state
// and activations, the policies of recomputation, both orders, the places of the update, and 0 to 3
// units of prefetch.
// {"count", "fits" (by the search), "refused_wrongly" (the search found a plan), "median_gain" (the
//   share by which an automatic plan takes longer than the best; below zero: it takes less),
//   "most_gain", "slower" (those with a gain of over 0.5%: "model" (the seed), "gain", "plan",
//   "best")}
nlohmann::json measure_small_plans(int first, int count);

}  // namespace sluice::bench
