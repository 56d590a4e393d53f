// Storage I/O: submit reads and writes, receive completions. io_uring and posix share one
// interface.
//
// The engine handles alignment: offsets, lengths and addresses may be arbitrary. An unaligned
// request goes through an aligned bounce buffer, with a read-modify-write of its edge blocks.
// Aligned requests from registered memory take the fast path (O_DIRECT, fixed buffers). Every
// result is checked, and short transfers are continued. A request ends once: complete or failed.
//
// Threads: any thread may call submit(). Callbacks run on the engine's one completion thread, never
// inside submit(), and must not block or throw. They may submit, without waiting for room. Requests
// in flight must not overlap unless all are reads; unaligned neighbours may share a block.
// Destruction ends requests that have not begun with IoError (ECANCELED) and waits for the others.
// submit() throws InternalError for a file id that is not open, and for a write to a read-only
// file.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace sluice::offload {

using StorageFileId = std::uint32_t;

enum class StorageOp : std::uint8_t { kRead, kWrite };

struct StorageRequest {
  StorageOp op = StorageOp::kRead;
  StorageFileId file = 0;
  std::uint64_t offset = 0;
  void* data = nullptr;  // stays valid until the callback has run
  std::uint64_t bytes = 0;
  // The time at which the caller waits for the end, on a clock of its own. Training uses the
  // schedule position of the first instruction that waits. The engine starts the lowest first;
  // 0: a thread waits already.
  std::uint64_t needed_by = 0;
};

// Counters of the engine: bytes as requested, of successful requests, without bounce overhead.
// Requests of zero bytes succeed and are not counted.
struct StorageCounters {
  std::uint64_t read_bytes = 0;
  std::uint64_t write_bytes = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t resubmitted = 0;      // continuations of short transfers
  std::uint64_t bounced = 0;          // unaligned requests
  std::uint64_t allocated_bytes = 0;  // file space preallocated now
  std::uint64_t peak_allocated_bytes = 0;
};

enum class StorageFileMode : std::uint8_t {
  kScratch,   // created, then unlinked at once; a crash leaves no file
  kCreate,    // created, must not exist; stays, with exactly the size given to open()
  kReadOnly,  // opened for reading, with the size that the file has
};

class StorageEngine {
 public:
  // error: null if all bytes moved.
  using Callback = std::function<void(std::exception_ptr error)>;
  virtual ~StorageEngine() = default;

  virtual std::string name() const = 0;  // "io_uring" or "posix"
  // Opens a file. Created files have mode 0600 and `bytes` preallocated (fallocate); kReadOnly
  // ignores `bytes`. InputError: too little room (with path, needed and available bytes), an
  // unusable directory, a file that already exists (created modes) or is missing (kReadOnly).
  // IoError: other failures. Transfers outside [0, size) end with IoError: short reads (errno 0),
  // writes with ENOSPC.
  virtual StorageFileId open(const std::string& path, StorageFileMode mode,
                             std::uint64_t bytes) = 0;
  // Size of an open file: as requested, or as found (kReadOnly).
  virtual std::uint64_t file_bytes(StorageFileId file) const = 0;
  // Closes the file after its requests have ended.
  virtual void close(StorageFileId file) = 0;

  // Registers memory that most requests will use (the pinned arena). The kernel keeps its pages
  // until the engine is destroyed. If the kernel refuses (memlock), the engine logs one line and
  // works without.
  virtual void register_memory(void* data, std::uint64_t bytes) = 0;

  // Queues one request. Blocks while the queue is full, for at most kDefaultDeadlineSeconds; then
  // throws TimeoutError.
  virtual void submit(const StorageRequest& request, Callback done) = 0;
  // Waits for all submitted requests. Their errors went to their callbacks.
  virtual void drain(Deadline deadline) = 0;
  // Calls fdatasync for the writes that have called back. Throws IoError on failure. A failed
  // flush is never retried: every later flush of the file fails too.
  virtual void flush(StorageFileId file) = 0;

  virtual StorageCounters counters() const = 0;

  // Sets a filter for fault injection, before the first request. It receives the result of every
  // data-moving system call (bytes, or -errno) before the engine does, on the thread that made or
  // reaped the call. A filter may return fewer bytes or an error.
  using ResultFilter = std::function<std::int64_t(std::int64_t result)>;
  virtual void filter_results(ResultFilter filter) = 0;

  // Submits, waits, and throws the request's error. For set-up and checkpoints.
  void transfer(const StorageRequest& request);
};

// Calls `submit` with a callback and waits until it has run. Throws its error, or TimeoutError
// after kDefaultDeadlineSeconds. bytes: for the text of that error.
void submit_and_wait(std::uint64_t bytes,
                     const std::function<void(StorageEngine::Callback)>& submit);

struct StorageOptions {
  // Pieces in flight, counted apart for reads and writes, so that writes never delay a read.
  std::uint32_t queue_depth = 32;
  std::uint32_t write_depth = 32;
  // io_uring: limit of bytes in flight in each direction; the last piece may exceed it. More bytes
  // in flight mean fewer wake-ups per byte, but all of them need staging memory.
  std::uint64_t queue_bytes = 48 << 20;
  // Larger requests are split into pieces of this size. A piece costs the same CPU time whatever
  // its size; disks are slower from 4 MiB on (docs/results has the figures).
  std::uint64_t request_bytes = 2 << 20;
  std::uint32_t threads = 4;  // posix: size of the pool; one of several serves only reads
  // io_uring: a kernel thread takes submissions (IORING_SETUP_SQPOLL). It saves system calls and
  // uses most of a core. If the kernel refuses it, the engine logs one line and works without.
  bool submission_thread = false;
};

// kind: "io_uring", "posix" or "auto". "auto" uses io_uring if a ring can be created; otherwise it
// uses posix and logs that. Throws InputError for "io_uring" where the kernel refuses it.
std::unique_ptr<StorageEngine> make_storage_engine(const std::string& kind,
                                                   const StorageOptions& options);
// Returns the reason why io_uring is unusable here; empty if it works.
std::string io_uring_unavailable_reason();

// Planned faults: the Nth operation fails, counted from 0.
enum class StorageFault : std::uint8_t {
  kNone,
  // Faults of requests. An operation is a read, a write, a flush or an open that preallocates. A
  // fault that does not apply to an operation (a short flush) counts it and lets it pass.
  kEio,
  kEnospc,
  kShortTransfer,  // half of the bytes move; the rest is resubmitted as a new operation
  kFlippedRead,    // one bit of the result is wrong; storage holds the right one
  kFlippedWrite,   // one bit is stored wrong
  kLostWrite,      // reported as done, but nothing is stored
  // Faults of system calls inside the engine (ResultFilter). An operation is a call that moves
  // data.
  kCallEagain,
  kCallEintr,
  kCallShortByHalf,
  kCallShortByOne,
  kCallShortBy511,
};
constexpr bool is_fault_of_calls(StorageFault fault) {
  return fault >= StorageFault::kCallEagain;
}
struct FaultPlan {
  StorageFault fault = StorageFault::kNone;
  std::uint64_t at_operation = 0;
  bool forever = false;  // all operations from the Nth on fail, not only that one
};
// Wraps an engine and injects faults. A preallocation fails with IoError, as if the disk filled up
// after the check. A permanent kShortTransfer never passes half of a request: the request ends with
// IoError (short transfer) after a bounded number of attempts.
std::unique_ptr<StorageEngine> make_faulty_engine(std::unique_ptr<StorageEngine> inner,
                                                  FaultPlan plan);
// Number of operations that the wrapper has seen, of requests and of calls; sizes a sweep.
std::uint64_t faulty_engine_operations(const StorageEngine& engine);
std::uint64_t faulty_engine_calls(const StorageEngine& engine);

}  // namespace sluice::offload
