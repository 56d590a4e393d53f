// The handle of an NCCL communicator, and the safety around each call: non-blocking groups,
// deadlines, a watch over queued calls, and an orderly end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "collectives/abort_reason.hpp"
#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/nccl/nccl_library.hpp"

namespace sluice::collectives {

class NcclSession {
 public:
  // Meets the other ranks and starts NCCL. Precondition: options.place.size > 1.
  explicit NcclSession(const NcclOptions& options);
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const NcclFunctions& nccl() const { return nccl_; }
  ncclComm_t handle() const { return handle_; }
  cudaStream_t stream() const;

  // Makes the NCCL calls of `queue` as one group, waits until NCCL has accepted it, and watches for
  // its end. `queue` passes the result of each NCCL call to require().
  void group(const char* call, const std::function<void()>& queue);
  void require(ncclResult_t result, const char* function) const;
  // Throws if a queued call has failed or is overdue, or if an abort was requested, which it then
  // carries out.
  void check(const char* call);
  // Any thread may request an abort. The thread that makes the calls carries it out while it waits,
  // or in check().
  void request_abort(const std::string& why) noexcept { reason_.set(why); }
  // The session of a group of some of this one's ranks. All ranks call it. A group of one has none.
  std::unique_ptr<NcclSession> split(std::span<const int> members);
  // Whether all queued calls have finished. Throws as check() does.
  bool is_idle(const char* call);
  // Waits until all queued calls have finished.
  void wait();

 private:
  struct Watched {
    const char* call = nullptr;
    std::unique_ptr<device::Event> event;
    Deadline deadline = Deadline::after_seconds(0);
  };
  static constexpr std::size_t kMostWatched = 16;

  // A session without a handle yet, with `parent`'s stream and deadlines.
  NcclSession(const NcclSession& parent, int rank, int size);
  void start(const ncclUniqueId& id, Deadline deadline);
  void settle(const char* call, Deadline deadline);
  void watch(const char* call);
  void end_if_requested(const char* call);
  [[noreturn]] void fail(ncclResult_t state, const char* call);
  [[noreturn]] void time_out(const std::string& awaited);
  void abort(const std::string& why) noexcept;
  std::string text_of(ncclResult_t result) const;

  const NcclFunctions& nccl_;
  device::Device& device_;
  device::Stream& stream_;
  const int rank_, size_;
  const double call_seconds_;
  ncclComm_t handle_ = nullptr;
  const std::function<void()> poll_;
  AbortReason reason_;  // set: aborted, or to be aborted
  // A ring of queued calls that are not known to have finished, oldest first. When it is full, the
  // newest entry stands for all later calls.
  std::array<Watched, kMostWatched> watched_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace sluice::collectives
