// The linking pass: derives deps from the bytes that instructions touch.
#pragma once

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// Sets `id` of every instruction and buffer to its index, and `deps` from the data hazards of list
// order: read after write, write after read, write after write on overlapping bytes of one buffer.
// A Release touches all bytes of the buffers that it names (in reads or writes). A Commit waits for
// every earlier StorageWrite of its rank. Deps that lane order or other deps imply are left out;
// deps present before are kept unless implied.
// Throws InternalError if a use names no buffer, a buffer of another rank, or bytes outside it.
void link(Schedule& schedule);

}  // namespace sluice::schedule
