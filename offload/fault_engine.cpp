// A storage engine that fails on purpose, by a plan. A failed request moves nothing and ends
// through an empty request to the inner engine, so that its callback comes as all do: later, on the
// completion thread.

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "offload/storage_engine.hpp"

namespace sluice {
namespace {

// Attempts that move nothing before a request with a lasting short transfer ends.
constexpr int kShortTries = 4;

class FaultyEngine final : public StorageEngine {
 public:
  FaultyEngine(std::unique_ptr<StorageEngine> inner, FaultPlan plan)
      : plan_(plan), inner_(std::move(inner)) {
    SLUICE_CHECK(inner_ != nullptr);
  }

  std::string name() const override { return inner_->name(); }

  StorageFileId open(const std::string& path, StorageFileMode mode, std::uint64_t bytes) override {
    if (mode != StorageFileMode::kReadOnly && bytes > 0) {
      if (const int error = error_of(next_fault())) {
        throw IoError("fallocate", path, 0, bytes, error);
      }
    }
    const StorageFileId file = inner_->open(path, mode, bytes);
    const std::lock_guard lock(mutex_);
    paths_[file] = path;
    return file;
  }

  void close(StorageFileId file) override {
    inner_->close(file);
    const std::lock_guard lock(mutex_);
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
    if (const int error = error_of(next_fault())) {
      throw IoError("fdatasync", path_of(file), 0, 0, error);
    }
    inner_->flush(file);
  }

  StorageCounters counters() const override {
    StorageCounters counters = inner_->counters();
    const std::lock_guard lock(mutex_);
    // The two parts of one request that was cut short are one request.
    counters.reads -= split_reads_;
    counters.writes -= split_writes_;
    counters.resubmitted += resubmitted_;
    return counters;
  }

  std::uint64_t operations() const { return operations_.load(); }

 private:
  struct Transfer {
    StorageRequest whole;
    Callback done;
    StorageRequest rest;
    bool halved = false;
    int tries = 0;
  };
  using TransferPtr = std::shared_ptr<Transfer>;

  StorageFault next_fault() {
    const std::uint64_t operation = operations_.fetch_add(1);
    const bool hit =
        plan_.forever ? operation >= plan_.at_operation : operation == plan_.at_operation;
    return hit ? plan_.fault : StorageFault::kNone;
  }

  // 0: none that is an error of its own.
  static int error_of(StorageFault fault) {
    if (fault == StorageFault::kEio) return EIO;
    return fault == StorageFault::kEnospc ? ENOSPC : 0;
  }

  // One operation on what is left of a request.
  void step(const TransferPtr& transfer) {
    const StorageFault fault = next_fault();
    if (const int error = error_of(fault)) {
      end(transfer, error);
      return;
    }
    if (fault != StorageFault::kShortTransfer || transfer->rest.bytes == 0) {
      inner_->submit(transfer->rest,
                     [transfer](std::exception_ptr error) { transfer->done(std::move(error)); });
      return;
    }
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

  // On the completion thread: resubmits the remainder.
  void go_on(const TransferPtr& transfer, std::uint64_t moved) {
    StorageRequest& rest = transfer->rest;
    rest.data = static_cast<std::byte*>(rest.data) + moved;
    rest.offset += moved;
    rest.bytes -= moved;
    {
      const std::lock_guard lock(mutex_);
      ++resubmitted_;
      if (moved > 0) ++(rest.op == StorageOp::kRead ? split_reads_ : split_writes_);
    }
    step(transfer);
  }

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
    const std::lock_guard lock(mutex_);
    const auto found = paths_.find(file);
    SLUICE_CHECK_MSG(found != paths_.end(), "no open storage file " + std::to_string(file));
    return found->second;
  }

  const FaultPlan plan_;
  std::atomic<std::uint64_t> operations_ = 0;
  mutable std::mutex mutex_;
  std::map<StorageFileId, std::string> paths_;  // guarded by mutex_, as all below
  std::uint64_t resubmitted_ = 0;
  std::uint64_t split_reads_ = 0;
  std::uint64_t split_writes_ = 0;
  std::unique_ptr<StorageEngine>
      inner_;  // last: goes first, while its callbacks may still use the rest
};

}  // namespace

std::unique_ptr<StorageEngine> make_faulty_engine(std::unique_ptr<StorageEngine> inner,
                                                  FaultPlan plan) {
  return std::make_unique<FaultyEngine>(std::move(inner), plan);
}

std::uint64_t faulty_engine_operations(const StorageEngine& engine) {
  const auto* faulty = dynamic_cast<const FaultyEngine*>(&engine);
  SLUICE_CHECK_MSG(faulty != nullptr, "not a fault-injecting engine");
  return faulty->operations();
}

}  // namespace sluice
