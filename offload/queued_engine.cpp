// The life of a request outside its transfer. submit() validates it, waits for room in its
// direction, numbers it and wakes the engine. finish() counts it, runs the callback, and only then
// makes room, so drain() returns after the last callback.
//
// Invariant: outstanding_[op] counts the requests between submit() and the end of finish(); each
// file has such a count of its own. Requests outside a file's bounds are queued like others and end
// with an error, so every callback runs on the completion thread and never inside submit().
#include "offload/queued_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.hpp"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kMinRequestBytes = 4096;
// One system call moves less than 2 GiB.
constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{1} << 30;

const char* op_name(StorageOp op) {
  return op == StorageOp::kRead ? "read" : "write";
}

std::exception_ptr io_error(const ActiveRequest& request, int error_number) {
  return std::make_exception_ptr(IoError(op_name(request.request.op), request.file->file.path(),
                                         request.request.offset, request.request.bytes,
                                         error_number));
}

}  // namespace

void ActiveRequest::fail(std::exception_ptr reason) {
  if (!error) error = std::move(reason);
  cursor.abandon();
}

void ActiveRequest::fail(int error_number) {
  fail(io_error(*this, error_number));
}

QueuedEngine::QueuedEngine(const StorageOptions& options) : options_(options) {
  SLUICE_CHECK(options.queue_depth >= 1 && options.queue_depth <= 4096);
  SLUICE_CHECK(options.write_depth >= 1 && options.write_depth <= 4096);
  SLUICE_CHECK(options.queue_bytes >= 1);
  SLUICE_CHECK(options.threads >= 1 && options.threads <= 256);
  SLUICE_CHECK(options.request_bytes >= kMinRequestBytes &&
               options.request_bytes <= kMaxRequestBytes);
}

StorageFileId QueuedEngine::open(const std::string& path, StorageFileMode mode,
                                 std::uint64_t bytes) {
  auto opened = std::make_shared<OpenFile>(path, mode, bytes);
  if (!opened->file.direct()) log_buffered_once(path);
  attach(opened);
  const MutexLock lock(mutex_);
  // Ids are never reused, so a stale id is always an error.
  const StorageFileId id = next_file_++;
  counters_.allocated_bytes += opened->file.allocated_bytes();
  counters_.peak_allocated_bytes =
      std::max(counters_.peak_allocated_bytes, counters_.allocated_bytes);
  files_.emplace(id, std::move(opened));
  return id;
}

void QueuedEngine::close(StorageFileId id) {
  std::shared_ptr<OpenFile> closing;
  {
    MutexLock lock(mutex_);
    closing = find_locked(id, "close");
    // A callback that waited for other callbacks would wait for itself.
    SLUICE_CHECK_MSG(!on_completion_thread() || closing->outstanding == 0,
                     "a callback closed a file with requests under way");
    const auto deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
    if (!for_end_.wait(lock, deadline, [&] { return closing->outstanding == 0; })) {
      throw TimeoutError("the requests of storage file '" + closing->file.path() + "' to end");
    }
    if (files_.erase(id) == 0) return;  // another thread closed it meanwhile
    counters_.allocated_bytes -= closing->file.allocated_bytes();
  }
  // The descriptor is closed without the lock, because close() may take long.
  detach(closing);
  closing->file.close();
}

void QueuedEngine::submit(const StorageRequest& request, Callback done) {
  SLUICE_CHECK(done != nullptr);
  SLUICE_CHECK(request.data != nullptr || request.bytes == 0);
  MutexLock lock(mutex_);
  auto file = find_locked(request.file, "submit");
  SLUICE_CHECK_MSG(request.op == StorageOp::kRead || file->file.writable(),
                   "a write to '" + file->file.path() + "', which is open for reading");
  const auto direction = static_cast<std::size_t>(request.op);
  if (!on_completion_thread() && outstanding_[direction] >= capacity()) {
    const auto deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
    const auto has_room = [&]() SLUICE_REQUIRES(mutex_) {
      return outstanding_[direction] < capacity();
    };
    if (!for_room_[direction].wait(lock, deadline, has_room)) {
      throw TimeoutError("room in the storage queue");
    }
    // The wait released the lock, so the file may have been closed.
    SLUICE_CHECK(file == find_locked(request.file, "submit"));
  }
  const std::uint64_t file_bytes = file->file.bytes();
  const PieceCursor cursor(request, file->file.alignment(), options_.request_bytes);
  auto active = std::make_shared<ActiveRequest>(ActiveRequest{
      request, std::move(done), std::move(file), cursor, 0, 0, false, nullptr, submitted_++});
  active->bounced = !cursor.aligned();
  if (request.bytes > file_bytes || request.offset > file_bytes - request.bytes) {
    // A read would end short; a write would leave the preallocated space.
    active->fail(request.op == StorageOp::kRead ? 0 : ENOSPC);
  }
  // The request is queued even if it has failed, so that its callback runs like all others.
  if (stopping_) active->fail(ECANCELED);
  incoming_.push_back(active);
  ++active->file->outstanding;
  ++outstanding_[direction];
  wake_locked();
}

void QueuedEngine::drain(Deadline deadline) {
  SLUICE_CHECK_MSG(!on_completion_thread(), "drain() in a completion callback");
  MutexLock lock(mutex_);
  if (!for_end_.wait(lock, deadline,
                     [&]() SLUICE_REQUIRES(mutex_) { return all_outstanding() == 0; })) {
    throw TimeoutError(std::to_string(all_outstanding()) + " storage requests to end");
  }
}

std::uint64_t QueuedEngine::file_bytes(StorageFileId id) const {
  const MutexLock lock(mutex_);
  return find_locked(id, "file_bytes")->file.bytes();
}

void QueuedEngine::flush(StorageFileId id) {
  std::shared_ptr<OpenFile> file;
  {
    const MutexLock lock(mutex_);
    file = find_locked(id, "flush");
  }
  // Flushed without the lock: fdatasync may take seconds. The shared pointer keeps the file open.
  file->file.sync();
}

StorageCounters QueuedEngine::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

void QueuedEngine::finish(const ActiveRequestPtr& request) noexcept {
  const StorageRequest& ended = request->request;
  {
    const MutexLock lock(mutex_);
    counters_.resubmitted += request->resubmitted;
    if (ended.bytes > 0 && !request->error) {
      if (request->bounced) ++counters_.bounced;
      ++(ended.op == StorageOp::kRead ? counters_.reads : counters_.writes);
      (ended.op == StorageOp::kRead ? counters_.read_bytes : counters_.write_bytes) += ended.bytes;
    }
  }
  try {
    request->done(request->error);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning,
        std::string("a storage callback threw an exception, which is a bug: ") + error.what());
  } catch (...) {
    log(LogLevel::kWarning, "a storage callback threw an exception, which is a bug");
  }
  request->done = nullptr;  // destroys the callback's captures before drain() returns
  const auto direction = static_cast<std::size_t>(ended.op);
  bool room = false;
  bool end = false;
  {
    const MutexLock lock(mutex_);
    --request->file->outstanding;
    --outstanding_[direction];
    // Decide under the lock, notify without it.
    room = for_room_[direction].count > 0 && outstanding_[direction] < capacity();
    end = for_end_.count > 0 && (all_outstanding() == 0 || request->file->outstanding == 0);
  }
  // One request made room for one submitter. Waiters for an end may wait for different files.
  if (room) for_room_[direction].ready.notify_one();
  if (end) for_end_.ready.notify_all();
}

bool QueuedEngine::retry_buffered(ActiveRequest& request, PieceTransfer& transfer,
                                  std::int64_t result) {
  if ((result != -EINVAL && result != -EOPNOTSUPP) || !transfer.take_buffered_retry()) return false;
  StorageFile& file = request.file->file;
  // Another transfer has already switched the file to the page cache.
  if (!file.direct()) return true;
  try {
    file.stop_direct();
  } catch (const IoError&) {
    return false;  // report the error of the transfer itself
  }
  log_buffered_once(file.path());
  return true;
}

std::shared_ptr<OpenFile> QueuedEngine::find_locked(StorageFileId id, const char* caller) const {
  const auto found = files_.find(id);
  SLUICE_CHECK_MSG(found != files_.end(),
                   std::string(caller) + ": no open storage file " + std::to_string(id));
  return found->second;
}

void QueuedEngine::log_buffered_once(const std::string& path) {
  if (buffered_logged_.exchange(true)) return;
  log(LogLevel::kWarning,
      "no direct I/O on the file system of '" + path + "': storage goes through the page cache");
}

}  // namespace sluice::offload
