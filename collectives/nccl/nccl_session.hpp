// The handle of an NCCL communicator, and the safety around each call: non-blocking groups,
// deadlines, a watch over queued calls, and an orderly end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.hpp"
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

  const NcclFunctions& nccl() const { return nccl_; }
  ncclComm_t handle() const { return handle_; }
  cudaStream_t stream() const;

  // Makes the NCCL calls of `queue` as one group, waits until NCCL has accepted it, and watches for
  // its end. `queue` passes the result of each NCCL call to require().
  void group(const char* call, const std::function<void()>& queue);
  void require(ncclResult_t result, const char* function) const;
  // Throws if a queued call has failed or is overdue.
  void check();
  // Waits until all queued calls have finished.
  void wait();

 private:
  struct Watched {
    const char* call = nullptr;
    std::unique_ptr<device::Event> event;
    Deadline deadline = Deadline::after_seconds(0);
  };
  static constexpr std::size_t kMostWatched = 16;

  void start(const ncclUniqueId& id, Deadline deadline);
  void settle(const char* call, Deadline deadline);
  void watch(const char* call);
  [[noreturn]] void fail(ncclResult_t state, const char* call);
  [[noreturn]] void time_out(const std::string& awaited);
  void abort(const std::string& why) noexcept;
  std::string text_of(ncclResult_t result) const;

  const NcclFunctions& nccl_;
  device::Stream& stream_;
  const int rank_, size_;
  const double call_seconds_;
  ncclComm_t handle_ = nullptr;
  std::string aborted_because_;  // empty: not aborted
  // A ring of queued calls that are not known to have finished, oldest first. When it is full, the
  // newest entry stands for all later calls.
  std::array<Watched, kMostWatched> watched_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace sluice::collectives
