// A storage engine that fails on purpose, according to a plan.
//
// A failed request moves nothing. It ends through an empty request to the inner engine, so that its
// callback runs like all others: later, on the completion thread. Faults of system calls are
// injected where the inner engine reads their results: the call was made, and the engine sees
// another result. Operations and calls are counted from 0; a plan names one number, or all from it
// on. A sweep runs a test once for each number.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::offload {
namespace {

// Number of attempts before a request with a permanent short transfer ends.
constexpr int kShortTries = 4;

// Flips one bit of operation n: anywhere in its bytes, and the same one in every run.
void flip_bit(std::byte* data, std::uint64_t bytes, std::uint64_t n) {
  const std::uint64_t scattered = (n + 1) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  data[(scattered >> 8) % bytes] ^= std::byte{1} << (scattered & 7);
}

class FaultyEngine final : public StorageEngine {
 public:
  FaultyEngine(std::unique_ptr<StorageEngine> inner, FaultPlan plan)
      : plan_(plan), inner_(std::move(inner)) {
    SLUICE_CHECK(inner_ != nullptr);
    inner_->filter_results([this](std::int64_t result) { return call_result(result); });
  }

  std::string name() const override { return inner_->name(); }

  StorageFileId open(const std::string& path, StorageFileMode mode, std::uint64_t bytes) override {
    if (mode != StorageFileMode::kReadOnly && bytes > 0) {
      if (const int error = error_of(next_fault().fault)) {
        throw IoError("fallocate", path, 0, bytes, error);
      }
    }
    const StorageFileId file = inner_->open(path, mode, bytes);
    const MutexLock lock(mutex_);
    paths_[file] = path;
    return file;
  }

  void close(StorageFileId file) override {
    inner_->close(file);
    const MutexLock lock(mutex_);
    paths_.erase(file);
  }

  void register_memory(void* data, std::uint64_t bytes) override {
    inner_->register_memory(data, bytes);
  }

  void submit(const StorageRequest& request, Callback done) override {
    step(std::make_shared<Transfer>(Transfer{request, std::move(done), request}));
  }

  void drain(Deadline deadline) override { inner_->drain(deadline); }

  std::uint64_t file_bytes(StorageFileId file) const override { return inner_->file_bytes(file); }

  void flush(StorageFileId file) override {
    if (const int error = error_of(next_fault().fault)) {
      throw IoError("fdatasync", path_of(file), 0, 0, error);
    }
    inner_->flush(file);
  }

  StorageCounters counters() const override {
    StorageCounters counters = inner_->counters();
    const MutexLock lock(mutex_);
    // The two parts of a halved request count as one.
    counters.reads -= split_reads_;
    counters.writes -= split_writes_;
    counters.resubmitted += resubmitted_;
    return counters;
  }

  void filter_results(ResultFilter) override {
    throw InternalError("a fault-injecting engine filters results itself");
  }

  std::uint64_t operations() const { return operations_.load(); }
  std::uint64_t calls() const { return calls_.load(); }

 private:
  struct Transfer {
    StorageRequest whole;
    Callback done;
    StorageRequest rest;
    bool halved = false;
    int tries = 0;
  };
  using TransferPtr = std::shared_ptr<Transfer>;

  struct Fault {
    StorageFault fault;
    std::uint64_t operation;
  };

  // Whether the plan names this operation.
  bool hits(std::uint64_t operation) const {
    return plan_.forever ? operation >= plan_.at_operation : operation == plan_.at_operation;
  }

  // Counts one operation of a request and returns its fault.
  Fault next_fault() {
    const std::uint64_t operation = operations_.fetch_add(1);
    const bool hit = !is_fault_of_calls(plan_.fault) && hits(operation);
    return {hit ? plan_.fault : StorageFault::kNone, operation};
  }

  // Returns the result that the inner engine sees in place of `result`.
  std::int64_t call_result(std::int64_t result) {
    const std::uint64_t call = calls_.fetch_add(1);
    if (!is_fault_of_calls(plan_.fault) || !hits(call)) return result;
    if (plan_.fault == StorageFault::kCallEagain) return -EAGAIN;
    if (plan_.fault == StorageFault::kCallEintr) return -EINTR;
    if (result <= 1) return result;  // an error, the end of the file, or too short to shorten
    std::int64_t missing = 1;
    if (plan_.fault == StorageFault::kCallShortByHalf) missing = result / 2;
    if (plan_.fault == StorageFault::kCallShortBy511) missing = 511;
    return std::max<std::int64_t>(1, result - missing);
  }

  // Returns the errno of the fault; 0 if it has none.
  static int error_of(StorageFault fault) {
    if (fault == StorageFault::kEio) return EIO;
    return fault == StorageFault::kEnospc ? ENOSPC : 0;
  }

  // Performs one operation on the rest of a request.
  void step(const TransferPtr& transfer) {
    const auto [fault, operation] = next_fault();
    if (const int error = error_of(fault)) {
      end(transfer, error);
      return;
    }
    if (corrupts(fault, transfer->rest)) {
      corrupt(transfer, fault, operation);
      return;
    }
    if (fault != StorageFault::kShortTransfer || transfer->rest.bytes == 0) {
      inner_->submit(transfer->rest,
                     [transfer](std::exception_ptr error) { transfer->done(std::move(error)); });
      return;
    }
    // Half of the bytes at first, then none, until the attempts are used up.
    StorageRequest part = transfer->rest;
    part.bytes = transfer->halved ? 0 : part.bytes / 2;
    if (transfer->halved && ++transfer->tries >= kShortTries) {
      end(transfer, 0);
      return;
    }
    transfer->halved = true;
    inner_->submit(part, [this, transfer, moved = part.bytes](std::exception_ptr error) {
      if (error) {
        transfer->done(std::move(error));
        return;
      }
      go_on(transfer, moved);
    });
  }

  // Whether the fault damages data of this request. Empty requests and the other direction pass.
  static bool corrupts(StorageFault fault, const StorageRequest& request) {
    if (request.bytes == 0) return false;
    if (fault == StorageFault::kFlippedRead) return request.op == StorageOp::kRead;
    return (fault == StorageFault::kFlippedWrite || fault == StorageFault::kLostWrite) &&
           request.op == StorageOp::kWrite;
  }

  // Ends with success but wrong bytes.
  void corrupt(const TransferPtr& transfer, StorageFault fault, std::uint64_t operation) {
    StorageRequest request = transfer->rest;
    if (fault == StorageFault::kFlippedRead) {
      inner_->submit(request, [transfer, request, operation](std::exception_ptr error) {
        if (!error) flip_bit(static_cast<std::byte*>(request.data), request.bytes, operation);
        transfer->done(std::move(error));
      });
      return;
    }
    const auto* const data = static_cast<const std::byte*>(request.data);
    // A private copy is stored damaged, so that the caller's bytes stay intact.
    const auto stored = std::make_shared<std::vector<std::byte>>(data, data + request.bytes);
    if (fault == StorageFault::kLostWrite) {
      request.offset = 0;
      request.bytes = 0;
    } else {
      flip_bit(stored->data(), stored->size(), operation);
    }
    request.data = stored->data();
    inner_->submit(request, [transfer, stored](std::exception_ptr error) {
      transfer->done(std::move(error));
    });
  }

  // Resubmits the remainder. Runs on the completion thread.
  void go_on(const TransferPtr& transfer, std::uint64_t moved) {
    StorageRequest& rest = transfer->rest;
    rest.data = static_cast<std::byte*>(rest.data) + moved;
    rest.offset += moved;
    rest.bytes -= moved;
    {
      const MutexLock lock(mutex_);
      ++resubmitted_;
      if (moved > 0) ++(rest.op == StorageOp::kRead ? split_reads_ : split_writes_);
    }
    step(transfer);
  }

  // Ends the request with an error, through an empty request of the inner engine.
  void end(const TransferPtr& transfer, int error_number) {
    const StorageRequest& whole = transfer->whole;
    auto error = std::make_exception_ptr(IoError(whole.op == StorageOp::kRead ? "read" : "write",
                                                 path_of(whole.file), whole.offset, whole.bytes,
                                                 error_number));
    StorageRequest empty = whole;
    empty.offset = 0;
    empty.bytes = 0;
    inner_->submit(empty, [transfer, error](std::exception_ptr) { transfer->done(error); });
  }

  std::string path_of(StorageFileId file) const {
    const MutexLock lock(mutex_);
    const auto found = paths_.find(file);
    SLUICE_CHECK_MSG(found != paths_.end(), "no open storage file " + std::to_string(file));
    return found->second;
  }

  const FaultPlan plan_;
  std::atomic<std::uint64_t> operations_ = 0;
  std::atomic<std::uint64_t> calls_ = 0;
  mutable Mutex mutex_;
  std::map<StorageFileId, std::string> paths_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t resubmitted_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t split_reads_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t split_writes_ SLUICE_GUARDED_BY(mutex_) = 0;
  // Last member: it is destroyed first, while its callbacks may still use the others.
  std::unique_ptr<StorageEngine> inner_;
};

}  // namespace

std::unique_ptr<StorageEngine> make_faulty_engine(std::unique_ptr<StorageEngine> inner,
                                                  FaultPlan plan) {
  return std::make_unique<FaultyEngine>(std::move(inner), plan);
}

namespace {

const FaultyEngine& as_faulty(const StorageEngine& engine) {
  const auto* faulty = dynamic_cast<const FaultyEngine*>(&engine);
  SLUICE_CHECK_MSG(faulty != nullptr, "not a fault-injecting engine");
  return *faulty;
}

}  // namespace

std::uint64_t faulty_engine_operations(const StorageEngine& engine) {
  return as_faulty(engine).operations();
}

std::uint64_t faulty_engine_calls(const StorageEngine& engine) {
  return as_faulty(engine).calls();
}

}  // namespace sluice::offload
