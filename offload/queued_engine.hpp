// The common part of both storage engines: open files, the bounded queue, counters, completion.
//
// Life of a request: submit() appends it to incoming_. The engine's own threads cut it into pieces
// and move them. finish() runs on the one completion thread: it counts, calls back and makes room.
// At most queue_depth * kQueuedRequestsPerDepth requests of each direction are unfinished; submit()
// waits for room. Callbacks may submit more without waiting, because each has just made room for
// one.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "offload/aligned_transfer.hpp"
#include "offload/storage_engine.hpp"
#include "offload/storage_file.hpp"

namespace sluice::offload {

inline constexpr std::uint32_t kQueuedRequestsPerDepth = 8;

// An open file and its count of unfinished requests.
struct OpenFile {
  OpenFile(const std::string& path, StorageFileMode mode, std::uint64_t bytes)
      : file(path, mode, bytes) {}
  StorageFile file;
  // Belongs to QueuedEngine::mutex_, which the compiler cannot express here.
  std::uint64_t outstanding = 0;
  int slot = -1;  // index of the registered file (io_uring); -1: not registered
};

struct ActiveRequest {
  StorageRequest request;
  StorageEngine::Callback done;
  std::shared_ptr<OpenFile> file;
  // cursor and pieces_in_flight belong to the thread that cuts (or to the lock it holds).
  PieceCursor cursor;
  std::uint32_t pieces_in_flight = 0;
  std::uint64_t resubmitted = 0;
  bool bounced = false;
  std::exception_ptr error;    // the first error
  std::uint64_t sequence = 0;  // submission number: the older request has the lower one

  // Stores the error unless there is one, and stops the cutting of further pieces.
  void fail(std::exception_ptr reason);
  void fail(int error_number);
  bool ended() const { return cursor.done() && pieces_in_flight == 0; }
};
using ActiveRequestPtr = std::shared_ptr<ActiveRequest>;

class QueuedEngine : public StorageEngine {
 public:
  StorageFileId open(const std::string& path, StorageFileMode mode, std::uint64_t bytes) override;
  std::uint64_t file_bytes(StorageFileId file) const override;
  void close(StorageFileId file) override;
  void submit(const StorageRequest& request, Callback done) override;
  void drain(Deadline deadline) override;
  void flush(StorageFileId file) override;
  StorageCounters counters() const override;
  void filter_results(ResultFilter filter) override { result_filter_ = std::move(filter); }

 protected:
  explicit QueuedEngine(const StorageOptions& options);

  // Notifies the engine of a new request on incoming_.
  virtual void wake_locked() SLUICE_REQUIRES(mutex_) = 0;
  // Called after a file was opened and before it is closed, without locks; the file has no
  // unfinished request then.
  virtual void attach(const std::shared_ptr<OpenFile>&) {}
  virtual void detach(const std::shared_ptr<OpenFile>&) {}

  // Ends a request: counts it, calls back, makes room. Completion thread only.
  void finish(const ActiveRequestPtr& request) noexcept SLUICE_EXCLUDES(mutex_);
  // Passes the result of a transfer's system call through the fault-injection filter.
  std::int64_t filtered(std::int64_t result) const {
    return result_filter_ ? result_filter_(result) : result;
  }
  // Handles a failed call of a transfer. Returns true if direct I/O may have been the reason: the
  // file now uses the page cache, and the call is to be made again. Each transfer gets one such
  // retry, because several may have been in flight when the kernel refused the first.
  bool retry_buffered(ActiveRequest& request, PieceTransfer& transfer, std::int64_t result);
  bool on_completion_thread() const {
    return std::this_thread::get_id() == completion_thread_.load();
  }

  const StorageOptions options_;
  mutable Mutex mutex_;
  std::deque<ActiveRequestPtr> incoming_ SLUICE_GUARDED_BY(mutex_);
  // Set by destructors: requests submitted from then on are cancelled.
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::atomic<std::thread::id> completion_thread_{};

 private:
  std::shared_ptr<OpenFile> find_locked(StorageFileId file, const char* caller) const
      SLUICE_REQUIRES(mutex_);
  void log_buffered_once(const std::string& path);

  // Threads that wait for requests to end. They are woken only when their condition may hold,
  // because waking a thread costs more than the rest of a request's bookkeeping.
  struct Waiters {
    CondVar ready;
    std::uint32_t count = 0;  // belongs to mutex_, the lock passed to wait()
    // Returns false if the deadline passed.
    template <typename Predicate>
    bool wait(MutexLock& lock, Deadline deadline, Predicate predicate) {
      ++count;
      const bool fulfilled = ready.wait_until(lock, deadline, std::move(predicate));
      --count;
      return fulfilled;
    }
  };
  // Limit per direction, so that reads have room however many writes are queued.
  std::uint64_t capacity() const {
    return std::uint64_t{options_.queue_depth} * kQueuedRequestsPerDepth;
  }

  std::uint64_t all_outstanding() const SLUICE_REQUIRES(mutex_) {
    return outstanding_[0] + outstanding_[1];
  }

  std::array<Waiters, 2> for_room_;  // by StorageOp
  Waiters for_end_;                  // drain() and close()
  std::map<StorageFileId, std::shared_ptr<OpenFile>> files_ SLUICE_GUARDED_BY(mutex_);
  StorageFileId next_file_ SLUICE_GUARDED_BY(mutex_) = 1;                 // never reused
  std::array<std::uint64_t, 2> outstanding_ SLUICE_GUARDED_BY(mutex_){};  // by StorageOp
  std::uint64_t submitted_ SLUICE_GUARDED_BY(mutex_) = 0;
  StorageCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::atomic<bool> buffered_logged_ = false;
  ResultFilter result_filter_;  // set before the first request
};

std::unique_ptr<StorageEngine> make_io_uring_engine(const StorageOptions& options);
std::unique_ptr<StorageEngine> make_posix_engine(const StorageOptions& options);

}  // namespace sluice::offload
