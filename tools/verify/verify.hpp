// `sluice verify`: a few steps of a user's own configuration, as it is and in other ways that must
// not change a bit: state in other tiers, other recomputation, updates at other moments, and other
// numbers of ranks. The ranks are threads of this process, with the budgets of one rank each.
//
// It trains on the configuration's data. A durable configuration commits and goes on from a commit,
// as its run would. All files lie in directories verify-ID of the storage paths, or have no name,
// and go with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace sluice::verify {

// The figures of a run that must be equal, to the bit.
struct Figures {
  std::vector<double> losses, norms;  // by step
  std::string weights_hash;
};

struct Outcome {
  Figures figures;
  config::Config settled;  // no key is "auto"
};

// A way to run the same training.
struct Variant {
  std::string name;
  std::vector<std::string> settings;  // "key=value"
  bool has_ranks = false;             // so it runs on processors
};
// Each changes one thing of the configuration.
std::vector<Variant> list_variants(const config::Config& given);

// Runs the first `steps` steps, with delayed updates a whole number of schedules. Throws InputError
// if the configuration is refused or does not fit.
Outcome run_steps(const config::Config& config, std::int64_t steps);

// Gives a variant the micro-batches of the first run: others round otherwise, and "auto" could
// choose others.
void keep_microbatches(config::Config& variant, const config::Config& settled);

// The first figure that differs, as a sentence; empty: none does.
std::string find_difference(const Figures& expected, const Figures& found);

}  // namespace sluice::verify
