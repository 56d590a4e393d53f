// Proof that a schedule is safe to run, for every timing of its lanes.
//
// Independent of the passes that made it (link, pack). An accepted schedule
//  - refers only to existing buffers and instructions, and its list is a sequential order of deps
//    and lanes;
//  - has no data race: any two uses of common bytes, one of them a write, are ordered by lane order
//    and deps. So every timing computes the same as list order, and the rest is checked in list
//    order;
//  - reads only bytes that were written, or hold a value at entry (tokens; homes named in `entry`);
//    uses no buffer after its Release, releases every transient buffer once, after all its users;
//  - copies like to like; wastes no state, activation or gradient (each write is read or outlives
//    the step); reads all weights at one version; accumulates each gradient's micro-batches in
//    order without a gap, and uses it (reduction, norm, optimizer) only when complete;
//  - leaves every home of `exit` at the version that exit names;
//  - never has two buffers in the same bytes or slots unless one's Release is ordered before the
//    other's writes; keeps all places inside the arenas, these inside peak_bytes, and these inside
//    the budgets;
//  - matches every send with a receive (order per peer and tag, bytes), and cannot deadlock even if
//    each send waits for its receive.
//
// make_plan calls it once on each schedule of the plan that it returns, never on candidates.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

inline constexpr std::array<std::uint64_t, kTierCount> kNoBudgets{
    std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max(),
    std::numeric_limits<std::uint64_t>::max()};

// Returns nothing if the schedule is accepted, else the first problems, each a sentence that names
// instruction and buffer.
// Linear in instructions and uses (50,000 instructions: < 1 s).
std::vector<std::string> validate(
    const Schedule& schedule,
    const std::array<std::uint64_t, kTierCount>& budgets_bytes = kNoBudgets);

}  // namespace sluice::schedule
