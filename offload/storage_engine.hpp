// Storage I/O: submit reads and writes, get completions. io_uring and posix behind one interface.
//
// The engine owns alignment: offsets, lengths and addresses may be arbitrary (an unaligned request
// goes through an aligned bounce buffer; a read-modify-write of its edge blocks); aligned requests
// from registered memory take the fast path (O_DIRECT, fixed buffers). Every completion's result is
// checked; short transfers are resubmitted for the remainder; a request ends once: fully done or
// failed. Threads: submit() from any thread; callbacks run on the engine's one completion thread,
// never inline in submit(), and must not block or throw. They may submit (without waiting for
// room). Requests under way at once must not overlap unless all are reads; unaligned neighbours
// that share a block are fine. Destruction ends requests that have not begun with IoError
// (ECANCELED) and waits for the others. A file id that is not open, or a write to a file opened for
// reading, is InternalError in submit().
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
  // When its end is waited for, on any one clock of the caller's (training: the place in the
  // schedule of the first instruction that waits for it). Of what waits to be started the lowest
  // goes first; 0: somebody waits now.
  std::uint64_t needed_by = 0;
};

// Counted by the engine itself: requested bytes of requests that ended well, bounce excluded.
// Requests of zero bytes end well and are not counted.
struct StorageCounters {
  std::uint64_t read_bytes = 0;
  std::uint64_t write_bytes = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t resubmitted = 0;      // continuations of short transfers
  std::uint64_t bounced = 0;          // requests that were not aligned
  std::uint64_t allocated_bytes = 0;  // preallocated file space, now
  std::uint64_t peak_allocated_bytes = 0;
};

enum class StorageFileMode : std::uint8_t {
  kScratch,   // created, then unlinked at once: nothing is left behind whatever happens
  kCreate,    // created, must not exist; stays, with exactly the size given to open()
  kReadOnly,  // opened for reading; its size is the file's own
};

class StorageEngine {
 public:
  // error: null when all bytes moved.
  using Callback = std::function<void(std::exception_ptr error)>;
  virtual ~StorageEngine() = default;

  virtual std::string name() const = 0;  // "io_uring" or "posix"
  // Creates with mode 0600 and preallocates `bytes` (fallocate; ignored for kReadOnly). InputError:
  // not enough room (names the path, the needed and the available bytes), a directory that cannot
  // hold it, a file that exists already (created modes) or does not (kReadOnly). Other failures:
  // IoError. Transfers outside [0, size) end with IoError: reads short (errno 0), writes ENOSPC.
  virtual StorageFileId open(const std::string& path, StorageFileMode mode,
                             std::uint64_t bytes) = 0;
  // The size of an open file: as it was asked for, or found (kReadOnly).
  virtual std::uint64_t file_bytes(StorageFileId file) const = 0;
  // Waits for the file's requests first.
  virtual void close(StorageFileId file) = 0;

  // Memory that requests will mostly use (the pinned arena): registered once with the kernel, which
  // keeps its pages until the engine is destroyed. Refused (memlock): one log line, and transfers
  // go on without.
  virtual void register_memory(void* data, std::uint64_t bytes) = 0;

  // Queues one request. Blocks (at most kDefaultDeadlineSeconds, then TimeoutError) while the queue
  // is full.
  virtual void submit(const StorageRequest& request, Callback done) = 0;
  // Waits for all submitted requests. Does not report their errors (their callbacks did).
  virtual void drain(Deadline deadline) = 0;
  // fdatasync: covers the writes whose callbacks have run. IoError on failure; never retried (every
  // later flush of the file fails too).
  virtual void flush(StorageFileId file) = 0;

  virtual StorageCounters counters() const = 0;

  // For fault injection, before the first request: what every system call that moves data returned
  // (bytes, or -errno) passes `filter` before the engine acts on it, on the thread that made or
  // reaped the call. A filter may claim less than was moved, or an error.
  using ResultFilter = std::function<std::int64_t(std::int64_t result)>;
  virtual void filter_results(ResultFilter filter) = 0;

  // Blocking convenience for set-up and checkpoints: submit and wait; throws the request's error.
  void transfer(const StorageRequest& request);
};

// Calls `submit` with a callback and waits until that has run; throws its error, or TimeoutError
// after kDefaultDeadlineSeconds. bytes: for that message.
void submit_and_wait(std::uint64_t bytes,
                     const std::function<void(StorageEngine::Callback)>& submit);

struct StorageOptions {
  // Pieces under way, of reads and of writes: bounded apart, so that writes never hold up a read.
  std::uint32_t queue_depth = 32;
  std::uint32_t write_depth = 32;
  // io_uring: and their bytes, in each direction; the last piece may go beyond. The more are in
  // flight, the fewer wake-ups for each, but all of it has to be staged.
  std::uint64_t queue_bytes = 48 << 20;
  // Larger requests are split into pieces of this. A piece costs the same CPU whatever its size;
  // from 4 MiB on disks are slower (ARCHITECTURE has the figures).
  std::uint64_t request_bytes = 2 << 20;
  std::uint32_t threads = 4;  // posix: pool size; one of several is kept for reads
  // io_uring: a kernel thread takes submissions (IORING_SETUP_SQPOLL), which costs no system call
  // and most of a core. Refused by the kernel: one log line, and the ring works without.
  bool submission_thread = false;
};

// kind: "io_uring", "posix" or "auto" (io_uring where a ring can be made, else posix, said once in
// the log). Throws InputError where "io_uring" is asked for and the kernel refuses it.
std::unique_ptr<StorageEngine> make_storage_engine(const std::string& kind,
                                                   const StorageOptions& options);
// Why io_uring cannot be used here; empty when it can.
std::string io_uring_unavailable_reason();

// Faults from a seedless plan: the Nth operation fails, counted from 0.
enum class StorageFault : std::uint8_t {
  kNone,
  // Of requests. An operation is a read, a write, a flush or an open that preallocates. What means
  // nothing to an operation (a short flush, a flipped bit of an open) lets it pass, counted.
  kEio,
  kEnospc,
  kShortTransfer,  // half of the bytes move, then the remainder is resubmitted as a new operation
  kFlippedRead,    // a bit of what was read is another; what is stored is right
  kFlippedWrite,   // a bit of what is stored is another
  kLostWrite,      // reported as done, and nothing is stored
  // Of system calls inside the engine (ResultFilter). An operation is a call that moves data.
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
  bool forever = false;  // every operation from the Nth on, else that one alone
};
// Wraps an engine. A preallocation fails with IoError (the disk filled up after it was checked).
// kShortTransfer for ever never gets past half: the request ends with IoError, short transfer,
// after a bounded number of tries.
std::unique_ptr<StorageEngine> make_faulty_engine(std::unique_ptr<StorageEngine> inner,
                                                  FaultPlan plan);
// Operations that the decorator has seen, of requests and of calls; to size a sweep.
std::uint64_t faulty_engine_operations(const StorageEngine& engine);
std::uint64_t faulty_engine_calls(const StorageEngine& engine);

}  // namespace sluice::offload
