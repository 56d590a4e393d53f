// NCCL as a table of functions, looked up at run time: a program that holds this code starts on a
// machine without NCCL, and tests put a table of their own in its place.
#pragma once

#include <nccl.h>

namespace sluice::collectives {

struct NcclFunctions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

// libnccl.so.2, opened once and kept open. Throws DeviceError where there is none, or it lacks a
// function (before 2.14: no communicator that does not block).
const NcclFunctions& nccl_library();

}  // namespace sluice::collectives
