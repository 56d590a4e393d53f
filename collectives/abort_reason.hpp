// The reason for which a group has ended; the first one stays. Any thread may set and read it.
#pragma once

#include <string>

#include "base/mutex.hpp"
#include "collectives/communicator.hpp"

namespace sluice::collectives {

class AbortReason {
 public:
  // Returns false if there is one already. failed_rank: as in CommunicationError.
  bool set(const std::string& why, int failed_rank = -1) {
    const MutexLock lock(mutex_);
    if (is_set_) return false;
    is_set_ = true;
    why_ = why;
    failed_rank_ = failed_rank;
    return true;
  }
  bool is_set() const {
    const MutexLock lock(mutex_);
    return is_set_;
  }
  // Throws CommunicationError if the group has ended.
  void check(const char* call) const {
    const MutexLock lock(mutex_);
    if (is_set_) throw CommunicationError(failed_rank_, call, "the group was aborted: " + why_);
  }

 private:
  mutable Mutex mutex_;
  bool is_set_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string why_ SLUICE_GUARDED_BY(mutex_);
  int failed_rank_ SLUICE_GUARDED_BY(mutex_) = -1;
};

}  // namespace sluice::collectives
