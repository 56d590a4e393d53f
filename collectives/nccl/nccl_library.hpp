// NCCL as a table of functions that is looked up at run time. A program with this code starts on a
// machine without NCCL, and tests replace the table.
#pragma once

#include <nccl.h>

namespace sluice::collectives {

struct NcclFunctions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommSplit) split;
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

// Opens libnccl.so.2 once and keeps it open. Throws DeviceError if it is missing or lacks a
// function (before 2.18: groups that are split off).
const NcclFunctions& nccl_library();

}  // namespace sluice::collectives
