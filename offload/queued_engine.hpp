// What both storage engines share: files by id, the bounded queue, counters, the end of requests.
//
// A request's life: submit() puts it on incoming_ -> the engine's own thread(s) cut it into pieces
// and move them -> finish() on the one completion thread: count, call back, make room. Queue bound:
// queue_depth * kQueuedRequestsPerDepth requests that have not ended; callbacks may submit more
// without waiting (each has just made room for one).
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

// A file with an id, and how many of its requests have not ended.
struct OpenFile {
  OpenFile(const std::string& path, StorageFileMode mode, std::uint64_t bytes)
      : file(path, mode, bytes) {}
  StorageFile file;
  // Belongs to QueuedEngine::mutex_, which the compiler cannot express here.
  std::uint64_t outstanding = 0;
  int slot = -1;  // the engine's own name for it (io_uring: registered file)
};

struct ActiveRequest {
  StorageRequest request;
  StorageEngine::Callback done;
  std::shared_ptr<OpenFile> file;
  PieceCursor cursor;  // as is pieces_in_flight: of the thread (or under the lock) that cuts
  std::uint32_t pieces_in_flight = 0;
  std::uint64_t resubmitted = 0;
  bool bounced = false;
  std::exception_ptr error;    // the first
  std::uint64_t sequence = 0;  // age: of two requests, the one submitted first has the lower

  // Keeps the first error; no further piece is cut.
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

  // A request is on incoming_.
  virtual void wake_locked() SLUICE_REQUIRES(mutex_) = 0;
  // A file came or goes; without lock, no request of it outstanding.
  virtual void attach(const std::shared_ptr<OpenFile>&) {}
  virtual void detach(const std::shared_ptr<OpenFile>&) {}

  // The request has ended: counts it, calls back, makes room. On the completion thread.
  void finish(const ActiveRequestPtr& request) noexcept SLUICE_EXCLUDES(mutex_);
  // What a call of a transfer returned, as the engine is to see it.
  std::int64_t filtered(std::int64_t result) const {
    return result_filter_ ? result_filter_(result) : result;
  }
  // One call of a transfer failed: true when direct I/O may have been the reason, the file now goes
  // through the page cache, and the call is to be made again (once: others of the file may have
  // been under way when the first was refused).
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
  std::shared_ptr<OpenFile> find_locked(StorageFileId file, const char* what) const
      SLUICE_REQUIRES(mutex_);
  void say_buffered_once(const std::string& path);

  // Threads that wait for requests to end. They are woken only when their condition may hold:
  // waking a thread costs more than everything else that is done for a request.
  struct Waiters {
    CondVar ready;
    std::uint32_t count = 0;  // belongs to mutex_, as the lock that wait() is given
    // Returns false when the deadline has passed.
    template <typename Predicate>
    bool wait(MutexLock& lock, Deadline deadline, Predicate predicate) {
      ++count;
      const bool fulfilled = ready.wait_until(lock, deadline, std::move(predicate));
      --count;
      return fulfilled;
    }
  };
  // Of each direction: reads have room however many writes wait.
  std::uint64_t capacity() const {
    return std::uint64_t{options_.queue_depth} * kQueuedRequestsPerDepth;
  }

  std::uint64_t all_outstanding() const SLUICE_REQUIRES(mutex_) {
    return outstanding_[0] + outstanding_[1];
  }

  std::array<Waiters, 2> for_room_;  // by StorageOp
  Waiters for_end_;                  // of all requests, or of one file's
  std::map<StorageFileId, std::shared_ptr<OpenFile>> files_ SLUICE_GUARDED_BY(mutex_);
  StorageFileId next_file_ SLUICE_GUARDED_BY(mutex_) = 1;                 // never used again
  std::array<std::uint64_t, 2> outstanding_ SLUICE_GUARDED_BY(mutex_){};  // by StorageOp
  std::uint64_t submitted_ SLUICE_GUARDED_BY(mutex_) = 0;
  StorageCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::atomic<bool> buffered_said_ = false;
  ResultFilter result_filter_;  // set before the first request
};

std::unique_ptr<StorageEngine> make_io_uring_engine(const StorageOptions& options);
std::unique_ptr<StorageEngine> make_posix_engine(const StorageOptions& options);

}  // namespace sluice::offload
