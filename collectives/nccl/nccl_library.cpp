// Looks up NCCL with dlopen. The library is never closed.
#include "collectives/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include <string>

#include "base/error.hpp"

namespace sluice::collectives {
namespace {

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(std::string("libnccl.so.2 has no ") + name + "; install NCCL 2.14 or newer");
  }
}

NcclFunctions open_library() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw DeviceError(std::string("cannot open NCCL, which several ranks on GPUs need (") +
                      ::dlerror() + "); install libnccl2, or set LD_LIBRARY_PATH to its directory");
  }
  NcclFunctions nccl{};
  look_up(library, "ncclGetVersion", nccl.get_version);
  look_up(library, "ncclGetUniqueId", nccl.get_unique_id);
  look_up(library, "ncclCommInitRankConfig", nccl.init_rank);
  look_up(library, "ncclCommFinalize", nccl.finalize);
  look_up(library, "ncclCommDestroy", nccl.destroy);
  look_up(library, "ncclCommAbort", nccl.abort);
  look_up(library, "ncclCommGetAsyncError", nccl.async_error);
  look_up(library, "ncclGetErrorString", nccl.error_string);
  look_up(library, "ncclGetLastError", nccl.last_error);
  look_up(library, "ncclGroupStart", nccl.group_start);
  look_up(library, "ncclGroupEnd", nccl.group_end);
  look_up(library, "ncclAllGather", nccl.all_gather);
  look_up(library, "ncclBroadcast", nccl.broadcast);
  look_up(library, "ncclSend", nccl.send);
  look_up(library, "ncclRecv", nccl.receive);
  return nccl;
}

}  // namespace

const NcclFunctions& nccl_library() {
  static const NcclFunctions functions = open_library();
  return functions;
}

}  // namespace sluice::collectives
