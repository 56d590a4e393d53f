// Joins the lists that ranks have compiled to the schedule of their world.
#pragma once

#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// Precondition: lists[r] is of one rank, number r of a world of lists.size() ranks; all have the
// same groups, the same size of slots and the same way to share the device (InternalError).
//
// The list of the world goes on with each rank up to its next meeting: a receive follows its send,
// and the members of a collective stand together. Where ranks disagree no such order exists; the
// rest then follows rank by rank, for validate to name the fault. Arenas and peaks are the largest
// of all ranks.
Schedule merge(const std::vector<Schedule>& lists);

}  // namespace sluice::schedule
