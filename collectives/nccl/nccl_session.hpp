// An NCCL communicator's handle with what surrounds each call: groups that do not block, deadlines,
// the watch over queued calls, and the end.
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
  // Meets the other ranks and starts NCCL. options.place.size > 1.
  explicit NcclSession(const NcclOptions& options);
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const NcclFunctions& nccl() const { return nccl_; }
  ncclComm_t handle() const { return handle_; }
  cudaStream_t stream() const;

  // Makes the NCCL calls of `queue` as one group, waits until NCCL has taken it, and watches its
  // end. queue: a call's result to each of its peers goes through require().
  void group(const char* call, const std::function<void()>& queue);
  void require(ncclResult_t result, const char* function) const;
  // Throws for what was queued before and has failed or is late.
  void check();
  // Until all that was queued has finished.
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
  [[noreturn]] void time_out(const std::string& what);
  void abort(const std::string& why) noexcept;
  std::string text_of(ncclResult_t result) const;

  const NcclFunctions& nccl_;
  device::Stream& stream_;
  const int rank_, size_;
  const double call_seconds_;
  ncclComm_t handle_ = nullptr;
  std::string aborted_because_;  // empty: it was not
  // A ring of what was queued and not yet seen to have finished, oldest first. Where it is full,
  // the newest stands for all later calls.
  std::array<Watched, kMostWatched> watched_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace sluice::collectives
