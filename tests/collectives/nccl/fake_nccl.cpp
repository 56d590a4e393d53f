#include "tests/collectives/nccl/fake_nccl.hpp"

#include <dlfcn.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::testing {
namespace {

using RawBytes = std::vector<unsigned char>;

struct Hub;
// The ranks that have come to a split of a communicator.
struct Split {
  std::map<int, int> ranks_by_color;
  std::map<int, std::shared_ptr<Hub>> hubs;  // by color
  int arrived = 0;
};

// All ranks of one unique id.
struct Hub {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<RawBytes>> sent;  // by sender and receiver
  int arrived = 0;
  std::map<int, Split> splits;  // by their number
};

struct Call {
  enum { kSend, kReceive, kGather, kBroadcast } what;
  const void* source;
  void* destination;
  std::size_t bytes;
  int peer;
  cudaStream_t stream;
};

std::mutex hubs_mutex;
std::map<std::string, std::shared_ptr<Hub>> hubs;
FakeNcclCounts counts;
thread_local ncclResult_t next_error = ncclSuccess;
thread_local int group_depth = 0;

}  // namespace
}  // namespace sluice::testing

struct ncclComm {
  int rank = 0, size = 0, splits = 0;
  std::shared_ptr<sluice::testing::Hub> hub;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::thread worker;
  std::atomic<int> on_stream{0};  // groups that a stream has not run yet
};

namespace sluice::testing {
namespace {

thread_local std::map<ncclComm*, std::vector<Call>> queued;

void post(ncclComm& comm, int peer, const void* from, std::size_t bytes) {
  const auto* const begin = static_cast<const unsigned char*>(from);
  const std::lock_guard lock(comm.hub->mutex);
  comm.hub->sent[{comm.rank, peer}].emplace_back(begin, begin + bytes);
  comm.hub->changed.notify_all();
}

// False: aborted, or the peer sent another number of bytes.
bool take(ncclComm& comm, int peer, void* to, std::size_t bytes) {
  std::unique_lock lock(comm.hub->mutex);
  auto& queue = comm.hub->sent[{peer, comm.rank}];
  comm.hub->changed.wait(lock, [&] { return comm.aborted || !queue.empty(); });
  if (comm.aborted || queue.front().size() != bytes) return false;
  std::memcpy(to, queue.front().data(), bytes);
  queue.pop_front();
  return true;
}

void post_call(ncclComm& comm, const Call& call) {
  const bool all =
      call.what == Call::kGather || (call.what == Call::kBroadcast && call.peer == comm.rank);
  if (call.what == Call::kSend) post(comm, call.peer, call.source, call.bytes);
  for (int peer = 0; all && peer < comm.size; ++peer) {
    if (peer != comm.rank) post(comm, peer, call.source, call.bytes);
  }
}

bool take_call(ncclComm& comm, const Call& call) {
  if (call.what == Call::kReceive) return take(comm, call.peer, call.destination, call.bytes);
  if (call.what == Call::kBroadcast && call.peer != comm.rank) {
    return take(comm, call.peer, call.destination, call.bytes);
  }
  if (call.what != Call::kGather) return true;
  for (int peer = 0; peer < comm.size; ++peer) {
    auto* const to =
        static_cast<unsigned char*>(call.destination) + static_cast<std::size_t>(peer) * call.bytes;
    if (peer == comm.rank) {
      if (to != call.source) std::memcpy(to, call.source, call.bytes);
    } else if (!take(comm, peer, to, call.bytes)) {
      return false;
    }
  }
  return true;
}

void run(ncclComm& comm, std::function<ncclResult_t()> work) {
  if (comm.worker.joinable()) comm.worker.join();
  comm.state = ncclInProgress;
  comm.worker = std::thread([&comm, work = std::move(work)] { comm.state = work(); });
}

// A group that a stream of the simulated driver runs.
struct StreamWork {
  ncclComm& comm;
  std::function<ncclResult_t()> work;
};
void run_on_stream(void* data) {
  const std::unique_ptr<StreamWork> queued(static_cast<StreamWork*>(data));
  const ncclResult_t result = queued->work();
  if (result != ncclSuccess) queued->comm.state = result;
  --queued->comm.on_stream;
}
ncclResult_t launch(ncclComm& comm, cudaStream_t stream, std::function<ncclResult_t()> work) {
  using LaunchHostFunction = int (*)(void* stream, void (*function)(void*), void* data);
  static const auto launch_host_function = reinterpret_cast<LaunchHostFunction>(
      ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuLaunchHostFunc"));
  if (launch_host_function == nullptr) return ncclSystemError;
  auto queued = std::make_unique<StreamWork>(StreamWork{comm, std::move(work)});
  ++comm.on_stream;
  if (launch_host_function(stream, &run_on_stream, queued.get()) != 0) {
    --comm.on_stream;
    return ncclUnhandledCudaError;
  }
  static_cast<void>(queued.release());  // run_on_stream's now
  ++counts.stream_groups;
  return ncclSuccess;
}

ncclResult_t add(ncclComm* comm, ncclDataType_t type, const Call& call) {
  if (type != ncclUint8) return ncclInvalidArgument;
  if (group_depth == 0) return ncclInvalidUsage;
  queued[comm].push_back(call);
  return ncclSuccess;
}

ncclResult_t end(ncclComm* comm, std::atomic<int>& count) {
  ++count;
  comm->aborted = true;
  comm->hub->changed.notify_all();
  {
    const std::lock_guard lock(comm->hub->mutex);  // a waiter is either before its look or asleep
  }
  comm->hub->changed.notify_all();
  if (comm->worker.joinable()) comm->worker.join();
  while (comm->on_stream > 0) std::this_thread::yield();
  delete comm;
  --counts.live;
  return ncclSuccess;
}

// ---- the table

ncclResult_t get_version(int* version) {
  *version = 99999;
  return ncclSuccess;
}
ncclResult_t get_unique_id(ncclUniqueId* id) {
  static std::atomic<int> next{0};
  const std::string name = "fake " + std::to_string(++next);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t init_rank(ncclComm_t* to, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;
  auto* const comm = new ncclComm;
  comm->rank = rank;
  comm->size = size;
  {
    const std::lock_guard lock(hubs_mutex);
    auto& hub = hubs[std::string(id.internal)];
    if (hub == nullptr) hub = std::make_shared<Hub>();
    comm->hub = hub;
  }
  ++counts.live;
  *to = comm;
  run(*comm, [comm] {
    std::unique_lock lock(comm->hub->mutex);
    ++comm->hub->arrived;
    comm->hub->changed.notify_all();
    comm->hub->changed.wait(lock,
                            [&] { return comm->aborted || comm->hub->arrived >= comm->size; });
    return ncclSuccess;
  });
  return ncclInProgress;
}
// A split is complete once all ranks of the parent have come with their colors.
ncclResult_t split(ncclComm_t parent, int color, int key, ncclComm_t* to, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;
  *to = nullptr;
  run(*parent, [parent, color, key, to] {
    Hub& hub = *parent->hub;
    std::unique_lock lock(hub.mutex);
    Split& split = hub.splits[++parent->splits];
    ++split.ranks_by_color[color];
    ++split.arrived;
    hub.changed.notify_all();
    hub.changed.wait(lock, [&] { return parent->aborted || split.arrived >= parent->size; });
    if (parent->aborted || color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    auto& shared = split.hubs[color];
    if (shared == nullptr) shared = std::make_shared<Hub>();
    auto* const comm = new ncclComm;
    comm->rank = key;
    comm->size = split.ranks_by_color[color];
    comm->hub = shared;
    ++counts.live;
    *to = comm;
    return ncclSuccess;
  });
  return ncclInProgress;
}
ncclResult_t finalize(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t destroy(ncclComm_t comm) {
  return end(comm, counts.destroyed);
}
ncclResult_t abort_comm(ncclComm_t comm) {
  return end(comm, counts.aborted);
}
ncclResult_t async_error(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}
const char* error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "fake error";
}
const char* last_error(ncclComm_t) {
  return "";
}
ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  --group_depth;
  const ncclResult_t error = std::exchange(next_error, ncclSuccess);
  bool works = false;
  for (auto& [comm, calls] : queued) {
    works = true;
    if (error != ncclSuccess) {
      run(*comm, [error] { return error; });
      continue;
    }
    const auto work = [comm = comm, calls = calls] {
      for (const Call& call : calls) post_call(*comm, call);
      for (const Call& call : calls) {
        if (!take_call(*comm, call)) return ncclInternalError;
      }
      return ncclSuccess;
    };
    if (calls.front().stream == nullptr) {
      run(*comm, work);
    } else if (const ncclResult_t launched = launch(*comm, calls.front().stream, work);
               launched != ncclSuccess) {
      comm->state = launched;
    }
  }
  queued.clear();
  return works ? ncclInProgress : ncclSuccess;
}
ncclResult_t all_gather(const void* source, void* destination, std::size_t bytes,
                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, type, {Call::kGather, source, destination, bytes, 0, stream});
}
ncclResult_t broadcast(const void* source, void* destination, std::size_t bytes,
                       ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, type, {Call::kBroadcast, source, destination, bytes, root, stream});
}
ncclResult_t send(const void* source, std::size_t bytes, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  return add(comm, type, {Call::kSend, source, nullptr, bytes, peer, stream});
}
ncclResult_t receive(void* destination, std::size_t bytes, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
  return add(comm, type, {Call::kReceive, nullptr, destination, bytes, peer, stream});
}

}  // namespace

const collectives::NcclFunctions& fake_nccl() {
  static const collectives::NcclFunctions table{
      get_version, get_unique_id, init_rank,    split,      finalize,    destroy,
      abort_comm,  async_error,   error_string, last_error, group_start, group_end,
      all_gather,  broadcast,     send,         receive};
  return table;
}

FakeNcclCounts& fake_nccl_counts() {
  return counts;
}

void fail_next_group(ncclResult_t error) {
  next_error = error;
}

}  // namespace sluice::testing
