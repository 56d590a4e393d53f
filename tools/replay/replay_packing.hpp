// Packs buffers of known lifetimes by several policies, and reports the capacity that each needs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::replay {

// Returns {"event":"replay", "source", "buffers", "peak_live_bytes", "policies":[{"policy",
// "capacity_bytes", "above_peak_live" (capacity / peak live - 1), "seconds", "fits"}]}. The
// policies:
// - "online": best fit in the order of time, like a caching allocator, which does not know the
//   future;
// - "quick": the packing of the trainer's plans;
// - "planned": the thorough packing. It takes some 20 s if the bound is out of reach, and longer
//   for tens of thousands of buffers. If capacity_bytes is given, it stops there.
// "fits" is present if capacity_bytes is given.
nlohmann::json replay_packing(std::span<const packing::Lifetime> lifetimes,
                              const std::string& source,
                              std::optional<std::uint64_t> capacity_bytes);

// A table with a line for each policy.
std::string replay_table(const nlohmann::json& event);

}  // namespace sluice::replay
