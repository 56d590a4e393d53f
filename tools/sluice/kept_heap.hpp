// The heap of a command that plans and ends.
#pragma once

namespace sluice::cli {

// From now on the C library keeps memory that is freed, for later allocations of this process.
// Plans make and drop lists of tens of megabytes, and each page that comes from the system costs a
// page fault. For commands that need no memory besides their plans. No effect without glibc.
void keep_freed_memory();

}  // namespace sluice::cli
