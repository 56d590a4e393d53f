// The storage engine for systems where io_uring is blocked: a pool of threads with pread and
// pwrite, and one thread that runs the callbacks. Cutting, alignment and contracts are those of the
// io_uring engine.
//
// Each worker takes the next piece of the most urgent request, releases the lock, moves the piece,
// and reports. If there are several workers, all but one may write at once, so a read finds one
// free. Edge writes take a mutex of their own. A request that has ended goes to ended_; the
// completion thread calls back from there. Shutdown fails the requests that have not begun, joins
// the workers, and then lets the completion thread drain ended_.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "offload/queued_engine.hpp"
#include "offload/request_queue.hpp"

namespace sluice::offload {
namespace {

class PosixEngine final : public QueuedEngine {
 public:
  explicit PosixEngine(const StorageOptions& options) : QueuedEngine(options) {
    try {
      for (std::uint32_t i = 0; i < options.threads; ++i) {
        workers_.push_back(start_thread("posix i/o", [this] { work(); }));
      }
      completer_ = start_thread("posix complete", [this] { complete(); });
      completion_thread_ = completer_.get_id();
    } catch (...) {
      stop();
      throw;
    }
  }
  ~PosixEngine() override { stop(); }

  std::string name() const override { return "posix"; }
  void register_memory(void*, std::uint64_t) override {}  // pread has no registered memory

 protected:
  void wake_locked() SLUICE_REQUIRES(mutex_) override {
    for (const auto& request : incoming_) waiting_.push(request);
    incoming_.clear();
    work_ready_.notify_one();
  }

 private:
  // Ends requests that have not begun with ECANCELED and waits for those in flight.
  void stop() noexcept {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      waiting_.for_each([](const ActiveRequestPtr& request) { request->fail(ECANCELED); });
    }
    work_ready_.notify_all();
    workers_.clear();  // joins
    {
      const MutexLock lock(mutex_);
      workers_gone_ = true;
    }
    ended_ready_.notify_all();
    if (completer_.joinable()) completer_.join();
  }

  // A worker: takes a piece under the lock, moves it without, and reports the result.
  void work() noexcept {
    const std::unique_ptr<std::byte[], decltype(&std::free)> bounce(
        static_cast<std::byte*>(std::aligned_alloc(kMaxAlignmentBytes, kBounceBytes)), &std::free);
    MutexLock lock(mutex_);
    while (true) {
      ActiveRequestPtr request;
      work_ready_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
        request = waiting_.next(true, may_write());
        return request != nullptr || (stopping_ && waiting_.empty());
      });
      if (!request) {
        work_ready_.notify_all();  // lets the other workers leave too
        return;
      }
      if (request->cursor.done()) {  // failed, empty or cancelled: nothing to move
        waiting_.erase(request);
        if (request->ended()) end_locked(request);
        continue;
      }
      const bool writes = request->request.op == StorageOp::kWrite;
      const Piece piece = request->cursor.peek();
      request->cursor.pop();
      ++request->pieces_in_flight;
      if (writes) ++writers_;
      waiting_.count_start(request);
      if (request->cursor.done()) {
        waiting_.erase(request);
      } else {
        work_ready_.notify_one();  // another worker may take the next piece
      }
      lock.unlock();
      std::uint64_t resubmitted = 0;
      const std::exception_ptr error = move(*request, piece, bounce.get(), resubmitted);
      lock.lock();
      // Wakes a worker that waits only because of the limit on writers.
      if (writes && writers_-- == most_writers_) work_ready_.notify_one();
      request->resubmitted += resubmitted;
      if (error) request->fail(error);
      --request->pieces_in_flight;
      if (!request->ended()) continue;
      // A request that failed early may still be queued.
      if (request->error) waiting_.erase(request);
      end_locked(request);
    }
  }

  // Moves one piece. Returns the error, or null.
  std::exception_ptr move(ActiveRequest& request, const Piece& piece, std::byte* bounce,
                          std::uint64_t& resubmitted) noexcept SLUICE_EXCLUDES(mutex_) {
    if (piece.kind == Piece::Kind::kEdge && request.request.op == StorageOp::kWrite) {
      const MutexLock edge(edge_mutex_);
      return transfer_piece(request, piece, bounce, resubmitted);
    }
    return transfer_piece(request, piece, bounce, resubmitted);
  }

  std::exception_ptr transfer_piece(ActiveRequest& request, const Piece& piece, std::byte* bounce,
                                    std::uint64_t& resubmitted) noexcept {
    try {
      const StorageOp op = request.request.op;
      if (piece.kind != Piece::Kind::kDirect && bounce == nullptr) throw std::bad_alloc();
      StorageFile& file = request.file->file;
      PieceTransfer transfer(piece, op, file.alignment(), bounce);
      auto state = PieceTransfer::State::kContinue;
      while (state == PieceTransfer::State::kContinue) {
        const auto call = transfer.call();
        const auto offset = static_cast<off_t>(call.offset);
        const ssize_t moved = call.op == StorageOp::kRead
                                  ? ::pread(file.descriptor(), call.data, call.bytes, offset)
                                  : ::pwrite(file.descriptor(), call.data, call.bytes, offset);
        const std::int64_t result = filtered(moved < 0 ? -errno : moved);
        if (result < 0 && retry_buffered(request, transfer, result)) continue;
        state = transfer.advance(result);
      }
      resubmitted = transfer.resubmitted();
      if (state == PieceTransfer::State::kDone) return nullptr;
      throw IoError(op == StorageOp::kRead ? "read" : "write", file.path(), piece.offset,
                    piece.bytes, transfer.error());
    } catch (...) {
      return std::current_exception();
    }
  }

  // Hands an ended request to the completion thread.
  void end_locked(ActiveRequestPtr request) SLUICE_REQUIRES(mutex_) {
    ended_.push_back(std::move(request));
    ended_ready_.notify_one();
  }

  // The completion thread: runs finish() for ended requests, one at a time, without a lock.
  void complete() noexcept {
    MutexLock lock(mutex_);
    while (true) {
      ended_ready_.wait(lock,
                        [&]() SLUICE_REQUIRES(mutex_) { return workers_gone_ || !ended_.empty(); });
      if (ended_.empty()) {
        // Requests that callbacks submitted after the workers had ended; they have failed already.
        std::vector<ActiveRequestPtr> late;
        waiting_.for_each([&late](const ActiveRequestPtr& request) { late.push_back(request); });
        for (ActiveRequestPtr& request : late) ended_.push_back(std::move(request));
        waiting_ = {};
        if (ended_.empty()) return;
      }
      ActiveRequestPtr request = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      finish(request);
      lock.lock();
    }
  }

  // At least one worker stays free for reads.
  bool may_write() const SLUICE_REQUIRES(mutex_) { return writers_ < most_writers_; }

  const std::uint32_t most_writers_ = std::max(options_.threads, 2u) - 1;
  RequestQueue waiting_ SLUICE_GUARDED_BY(mutex_);       // with pieces still to cut
  std::uint32_t writers_ SLUICE_GUARDED_BY(mutex_) = 0;  // writing workers
  Mutex edge_mutex_;  // one edge write at a time (aligned_transfer.hpp)
  CondVar work_ready_;
  CondVar ended_ready_;
  std::deque<ActiveRequestPtr> ended_ SLUICE_GUARDED_BY(mutex_);
  bool workers_gone_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> workers_;
  std::jthread completer_;
};

}  // namespace

std::unique_ptr<StorageEngine> make_posix_engine(const StorageOptions& options) {
  return std::make_unique<PosixEngine>(options);
}

}  // namespace sluice::offload
