// Buffers of known lifetimes through several policies: what capacity each needs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::replay {

// capacity_bytes: where given, "planned" looks for no less, and each policy has "fits".
// {"event":"replay", "source", "buffers", "peak_live_bytes", "policies":[{"policy",
// "capacity_bytes", "above_peak_live" (capacity / peak live - 1), "seconds"}]}. Policies: "online"
// (best fit in the order of time: a caching allocator that knows no future), "quick" (what the
// trainer's plans use) and "planned" (thorough; some 20 s where the bound is out of
// reach, longer where buffers are tens of thousands).
nlohmann::json replay_packing(std::span<const packing::Lifetime> lifetimes, const std::string& source,
                              std::optional<std::uint64_t> capacity_bytes);

// For people: a line for each policy.
std::string replay_table(const nlohmann::json& event);

}  // namespace sluice::replay
