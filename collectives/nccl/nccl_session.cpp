// Non-blocking use of NCCL (NCCL user guide, "Asynchronous errors and error handling").
//
// Every call may return ncclInProgress; settle() then polls ncclCommGetAsyncError until NCCL has
// accepted the call or the deadline passes. An event recorded after each group tells when its
// kernels have finished, so a peer that died shows up as an overdue event rather than as a hang.
// Any failure aborts the communicator, because NCCL cannot continue after one. At the start the
// ranks exchange introductions (machine, GPU), and rank 0 adds NCCL's unique id.
#include "collectives/nccl/nccl_session.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.hpp"

namespace sluice::collectives {
namespace {

// Pause between two polls of a call that NCCL has not accepted yet.
constexpr std::chrono::microseconds kPollPause{50};
// Deadline of ncclCommFinalize after all calls have finished.
constexpr double kFinalizeSeconds = 30;

// Identifies the machine, also across containers.
std::string machine_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}
std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// A rank's message to the others: three texts, each closed by a 0, and rank 0's unique id.
struct Introduction {
  std::string machine, name, gpu;
  std::string unique_id;  // bytes

  std::string message() const { return machine + '\0' + name + '\0' + gpu + '\0' + unique_id; }
  static Introduction of(const std::string& message) {
    Introduction introduction;
    std::size_t begin = 0;
    for (std::string* text : {&introduction.machine, &introduction.name, &introduction.gpu}) {
      const std::size_t end = message.find('\0', begin);
      if (end == std::string::npos) throw DeviceError("a rank sent a malformed introduction");
      *text = message.substr(begin, end - begin);
      begin = end + 1;
    }
    introduction.unique_id = message.substr(begin);
    return introduction;
  }
};

void refuse_shared_gpus(const std::vector<Introduction>& ranks) {
  for (std::size_t later = 1; later < ranks.size(); ++later) {
    for (std::size_t rank = 0; rank < later; ++rank) {
      if (ranks[rank].machine != ranks[later].machine || ranks[rank].gpu != ranks[later].gpu)
        continue;
      throw InputError("ranks " + std::to_string(rank) + " and " + std::to_string(later) +
                       " share GPU " + ranks[rank].gpu + " of machine " + ranks[rank].name +
                       ", but NCCL needs one for each rank; start one process for each GPU");
    }
  }
}

}  // namespace

NcclSession::NcclSession(const NcclOptions& options)
    : nccl_(options.nccl != nullptr ? *options.nccl : nccl_library()),
      device_(*options.device),
      stream_(*options.stream),
      rank_(options.place.rank),
      size_(options.place.size),
      call_seconds_(options.call_seconds),
      poll_(options.poll) {
  const Deadline deadline = Deadline::after_seconds(options.start_seconds);
  for (Watched& watched : watched_) watched.event = device_.create_event();
  Introduction own{machine_id(), machine_name(), options.gpu, {}};
  if (rank_ == 0) {
    ncclUniqueId id{};
    require(nccl_.get_unique_id(&id), "ncclGetUniqueId");
    own.unique_id.assign(id.internal, sizeof id.internal);
  }
  std::vector<Introduction> ranks;
  const std::vector<std::string> messages =
      options.exchange ? options.exchange(own.message(), deadline)
                       : exchange_messages(options.place, own.message(), deadline);
  for (const std::string& message : messages) ranks.push_back(Introduction::of(message));
  refuse_shared_gpus(ranks);
  ncclUniqueId id{};
  if (ranks[0].unique_id.size() != sizeof id.internal) {
    throw DeviceError("rank 0 has another NCCL version; install one version for all ranks");
  }
  std::memcpy(id.internal, ranks[0].unique_id.data(), sizeof id.internal);
  start(id, deadline);
}

NcclSession::NcclSession(const NcclSession& parent, int rank, int size)
    : nccl_(parent.nccl_),
      device_(parent.device_),
      stream_(parent.stream_),
      rank_(rank),
      size_(size),
      call_seconds_(parent.call_seconds_),
      poll_(parent.poll_) {
  for (Watched& watched : watched_) watched.event = device_.create_event();
}

NcclSession::~NcclSession() {
  if (handle_ == nullptr) return;
  bool idle = true;
  for (std::size_t i = 0; i < count_; ++i) {
    idle = idle && watched_[(first_ + i) % kMostWatched].event->done();
  }
  if (!idle) {
    abort("it was destroyed before its calls had finished");
    return;
  }
  // Queued work is done. Only the proxies of the ranks still have to agree.
  ncclResult_t state = nccl_.finalize(handle_);
  const Deadline deadline = Deadline::after_seconds(kFinalizeSeconds);
  while (state == ncclInProgress && !deadline.passed()) {
    std::this_thread::sleep_for(kPollPause);
    if (nccl_.async_error(handle_, &state) != ncclSuccess) break;
  }
  if (state == ncclSuccess) {
    static_cast<void>(nccl_.destroy(handle_));
  } else {
    abort("it could not be closed");
  }
}

cudaStream_t NcclSession::stream() const {
  return static_cast<cudaStream_t>(stream_.native());
}

void NcclSession::start(const ncclUniqueId& id, Deadline deadline) {
  // Runs inside launch, because the device's context is current there.
  stream_.launch([this, id] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    require(nccl_.init_rank(&handle_, size_, id, rank_, &config), "ncclCommInitRankConfig");
  });
  try {
    stream_.synchronize(deadline);
    settle("NCCL's start", deadline);
  } catch (...) {
    if (handle_ != nullptr) abort("it did not start");
    throw;
  }
}

std::string NcclSession::text_of(ncclResult_t result) const {
  std::string text = nccl_.error_string(result);
  const char* const last = handle_ != nullptr ? nccl_.last_error(handle_) : nullptr;
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  return text;
}

void NcclSession::require(ncclResult_t result, const char* function) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw DeviceError(std::string(function) + " on rank " + std::to_string(rank_) + ": " +
                    text_of(result));
}

void NcclSession::abort(const std::string& why) noexcept {
  if (handle_ == nullptr) return;
  reason_.set(why);
  static_cast<void>(nccl_.abort(handle_));
  handle_ = nullptr;
  count_ = 0;
}

void NcclSession::fail(ncclResult_t state, const char* call) {
  const std::string why =
      std::string(call) + " failed on rank " + std::to_string(rank_) + ": " + text_of(state);
  abort(why);
  throw CommunicationError(-1, call, "NCCL: " + why);
}

void NcclSession::time_out(const std::string& awaited) {
  const std::string waited = awaited + " on rank " + std::to_string(rank_) + " of " +
                             std::to_string(size_) + " (another rank may be gone)";
  abort("the deadline passed while waiting for " + waited);
  throw TimeoutError(waited);
}

void NcclSession::settle(const char* call, Deadline deadline) {
  while (true) {
    end_if_requested(call);
    ncclResult_t state = ncclSuccess;
    require(nccl_.async_error(handle_, &state), "ncclCommGetAsyncError");
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) fail(state, call);
    if (deadline.passed()) time_out(std::string("NCCL to accept ") + call);
    std::this_thread::sleep_for(kPollPause);
  }
}

void NcclSession::watch(const char* call) {
  if (count_ < kMostWatched) ++count_;
  Watched& newest = watched_[(first_ + count_ - 1) % kMostWatched];
  newest.call = call;
  newest.deadline = Deadline::after_seconds(call_seconds_);
  stream_.record(*newest.event);
}

void NcclSession::end_if_requested(const char* call) {
  if (poll_ && !reason_.is_set()) {
    try {
      poll_();
    } catch (const CommunicationError& error) {
      reason_.set(error.why, error.rank);
    }
  }
  if (!reason_.is_set()) return;
  abort("");  // the reason is set
  reason_.check(call);
}

void NcclSession::check(const char* call) {
  end_if_requested(call);
  while (count_ > 0 && watched_[first_].event->done()) {
    first_ = (first_ + 1) % kMostWatched;
    --count_;
  }
  ncclResult_t state = ncclSuccess;
  require(nccl_.async_error(handle_, &state), "ncclCommGetAsyncError");
  const char* const oldest = count_ > 0 ? watched_[first_].call : "a call";
  if (state != ncclSuccess && state != ncclInProgress) fail(state, oldest);
  if (count_ > 0 && watched_[first_].deadline.passed()) {
    time_out(std::string(oldest) + " to finish");
  }
}

void NcclSession::group(const char* call, const std::function<void()>& queue) {
  check(call);
  const Deadline deadline = Deadline::after_seconds(call_seconds_);
  require(nccl_.group_start(), "ncclGroupStart");
  try {
    queue();
  } catch (...) {
    // The calls queued so far would wait for peers that never come.
    static_cast<void>(nccl_.group_end());
    abort(std::string(call) + " could not be queued");
    throw;
  }
  const ncclResult_t result = nccl_.group_end();
  if (result != ncclSuccess && result != ncclInProgress) fail(result, call);
  settle(call, deadline);
  watch(call);
}

std::unique_ptr<NcclSession> NcclSession::split(std::span<const int> members) {
  check("split");
  const auto own = std::find(members.begin(), members.end(), rank_) - members.begin();
  std::unique_ptr<NcclSession> group(
      new NcclSession(*this, static_cast<int>(own), static_cast<int>(members.size())));
  const Deadline deadline = Deadline::after_seconds(call_seconds_);
  const int color = members.size() > 1 ? members.front() : NCCL_SPLIT_NOCOLOR;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  require(nccl_.split(handle_, color, group->rank_, &group->handle_, &config), "ncclCommSplit");
  // The parent has the new handle once it has accepted the call. That starts on its own then.
  settle("split", deadline);
  if (group->handle_ != nullptr) group->settle("split", deadline);
  return group;
}

bool NcclSession::is_idle(const char* call) {
  check(call);
  return count_ == 0;
}

void NcclSession::wait() {
  while (!is_idle("barrier")) std::this_thread::sleep_for(kPollPause);
}

}  // namespace sluice::collectives
