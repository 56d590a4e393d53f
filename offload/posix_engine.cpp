// The storage engine for systems where io_uring is blocked: a pool of threads with pread and
// pwrite, and one thread that runs the callbacks. Cutting, alignment and contracts are those of the
// io_uring engine.
//
// Each worker takes the next piece of the most urgent request, releases the lock, moves the piece,
// and reports. At most threads - 1 workers write at once, so that a read finds a free one. Edge
// writes take a mutex of their own. A request that has ended goes to ended_; the completion thread
// calls back from there. Shutdown fails the requests that have not begun, joins the workers, and
// then lets the completion thread drain ended_.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <new>
#include <stop_token>
#include <vector>

#include "base/log.hpp"
#include "base/thread_name.hpp"
#include "offload/queued_engine.hpp"
#include "offload/request_queue.hpp"

namespace sluice::offload {
namespace {

class PosixEngine final : public QueuedEngine {
 public:
  explicit PosixEngine(const StorageOptions& options) : QueuedEngine(options) {
    try {
      for (std::uint32_t i = 0; i < options.threads; ++i) {
        workers_.emplace_back([this] { work(); });
      }
      completer_ = std::jthread([this] { complete(); });
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
  void wake_locked() override {
    for (const auto& request : incoming_) waiting_.push(request);
    incoming_.clear();
    work_ready_.notify_one();
  }

 private:
  // Ends requests that have not begun with ECANCELED and waits for those in flight.
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      waiting_.for_each([](const ActiveRequestPtr& request) { request->fail(ECANCELED); });
    }
    work_ready_.notify_all();
    workers_.clear();  // joins
    {
      const std::lock_guard lock(mutex_);
      workers_gone_ = true;
    }
    ended_ready_.notify_all();
    if (completer_.joinable()) completer_.join();
  }

  // A worker: takes a piece under the lock, moves it without, and reports the result.
  void work() noexcept {
    name_this_thread("posix i/o");
    const std::unique_ptr<std::byte[], decltype(&std::free)> bounce(
        static_cast<std::byte*>(std::aligned_alloc(kMaxAlignmentBytes, kBounceBytes)), &std::free);
    std::unique_lock lock(mutex_);
    while (true) {
      ActiveRequestPtr request;
      work_ready_.wait(lock, [&] {
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

  // Moves one piece. Returns its error, or null.
  std::exception_ptr move(ActiveRequest& request, const Piece& piece, std::byte* bounce,
                          std::uint64_t& resubmitted) noexcept {
    try {
      const StorageOp op = request.request.op;
      std::unique_lock<std::mutex> edge(edge_mutex_, std::defer_lock);
      if (piece.kind == Piece::Kind::kEdge && op == StorageOp::kWrite) edge.lock();
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

  // Hands an ended request to the completion thread. Called with mutex_ held.
  void end_locked(ActiveRequestPtr request) {
    ended_.push_back(std::move(request));
    ended_ready_.notify_one();
  }

  // The completion thread: runs finish() for ended requests, one at a time, without a lock.
  void complete() noexcept {
    name_this_thread("posix complete");
    std::unique_lock lock(mutex_);
    while (true) {
      ended_ready_.wait(lock, [&] { return workers_gone_ || !ended_.empty(); });
      if (ended_.empty()) {
        // Requests that callbacks submitted after the workers had gone; they have failed already.
        waiting_.for_each([&](const ActiveRequestPtr& request) { ended_.push_back(request); });
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
  bool may_write() const { return writers_ < most_writers_; }

  const std::uint32_t most_writers_ = std::max(options_.threads, 2u) - 1;
  RequestQueue waiting_;       // not wholly cut yet; guarded by mutex_
  std::uint32_t writers_ = 0;  // workers that write now; guarded by mutex_
  std::mutex edge_mutex_;      // one edge write at a time (aligned_transfer.hpp)
  std::condition_variable work_ready_;
  std::condition_variable ended_ready_;
  std::deque<ActiveRequestPtr> ended_;  // guarded by mutex_, as all below
  bool workers_gone_ = false;
  std::vector<std::jthread> workers_;
  std::jthread completer_;
};

}  // namespace

std::unique_ptr<StorageEngine> make_posix_engine(const StorageOptions& options) {
  return std::make_unique<PosixEngine>(options);
}

}  // namespace sluice::offload
