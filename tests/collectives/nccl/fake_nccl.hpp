// NCCL for ranks that are threads of one process and have their buffers in its memory: a table of
// functions that really carries bytes, asynchronously as a communicator that does not block does.
// A group's calls are made by a thread of their own once the group has ended; until then, and until
// all peers have come, the communicator is ncclInProgress.
//
// Calls on a stream of the simulated CUDA driver are accepted at once, and run when the stream
// comes to them. Their buffers are memory of the simulated GPU.
#pragma once

#include <atomic>

#include "collectives/nccl/nccl_library.hpp"

namespace sluice::testing {

struct FakeNcclCounts {
  std::atomic<int> live{0};  // communicators that neither were destroyed nor aborted
  std::atomic<int> destroyed{0};
  std::atomic<int> aborted{0};
  std::atomic<int> stream_groups{0};  // groups of calls that ran on a stream
};

const collectives::NcclFunctions& fake_nccl();
FakeNcclCounts& fake_nccl_counts();
// From now on the calling thread's next group ends in this asynchronous error.
void fail_next_group(ncclResult_t error);

}  // namespace sluice::testing
