// Looks up NCCL with dlopen. The library is never closed.
#include "collectives/nccl/nccl_library.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "collectives/nccl/nccl_communicator.hpp"

namespace sluice::collectives {
namespace {

NcclFunctions open_library() {
  DynamicLibrary library = DynamicLibrary::open({"libnccl.so.2"});
  if (!library.is_open()) {
    throw DeviceError("cannot open NCCL, which several ranks on GPUs need (" + library.error() +
                      "); install libnccl2, or set LD_LIBRARY_PATH to its directory");
  }
  NcclFunctions nccl{};
  library.find("ncclGetVersion", nccl.get_version);
  library.find("ncclGetUniqueId", nccl.get_unique_id);
  library.find("ncclCommInitRankConfig", nccl.init_rank);
  library.find("ncclCommSplit", nccl.split);
  library.find("ncclCommFinalize", nccl.finalize);
  library.find("ncclCommDestroy", nccl.destroy);
  library.find("ncclCommAbort", nccl.abort);
  library.find("ncclCommGetAsyncError", nccl.async_error);
  library.find("ncclGetErrorString", nccl.error_string);
  library.find("ncclGetLastError", nccl.last_error);
  library.find("ncclGroupStart", nccl.group_start);
  library.find("ncclGroupEnd", nccl.group_end);
  library.find("ncclAllGather", nccl.all_gather);
  library.find("ncclBroadcast", nccl.broadcast);
  library.find("ncclSend", nccl.send);
  library.find("ncclRecv", nccl.receive);
  if (!library.missing().empty()) {
    throw DeviceError("libnccl.so.2 has no " + library.missing() + "; install NCCL 2.18 or newer");
  }
  return nccl;
}

}  // namespace

const NcclFunctions& nccl_library() {
  static const NcclFunctions functions = open_library();
  return functions;
}

std::string nccl_missing() {
  try {
    nccl_library();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace sluice::collectives
