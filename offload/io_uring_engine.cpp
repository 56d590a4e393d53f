// The storage engine on io_uring (man 7 io_uring). One thread owns the ring: it cuts requests,
// submits in batches, reaps completions and runs the callbacks. It makes one system call per batch.
// The file has 650 lines because the ring, the engine and its broken state share one thread's data.
//
// The ring uses SINGLE_ISSUER | DEFER_TASKRUN where the kernel has them (6.1). Completions are then
// processed only when this thread asks for them, so no interrupt disturbs the compute threads. For
// this reason only that thread touches the ring, also for registration (run_on_ring).
//
// Each turn of the loop takes new requests (collect), starts pieces while slots and bytes are free
// (issue), submits and sleeps until a completion or a wake-up (submit_and_wait), and handles the
// completions (reap). A read of an eventfd stands in the ring, so that other threads can wake it.
// Submitters write the eventfd only if the ring thread could start their request.

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "offload/queued_engine.hpp"
#include "offload/request_queue.hpp"

namespace sluice::offload {
namespace {

constexpr unsigned kFileSlots = 64;              // registered files; others use descriptors
constexpr unsigned kBufferSlots = 64;            // registered regions, each <= kMaxRegionBytes
constexpr std::uint64_t kMaxRegionBytes = kGiB;  // the kernel's bound on one registered buffer
constexpr int kBounceBuffers = 4;
constexpr std::uint64_t kWakeTag = std::uint64_t{1} << 32;  // user_data of the eventfd read
// Transfers of at least this size go to the kernel at most kUnpluggedCalls at a time. More in one
// call would be plugged (io_uring.c, IO_PLUG_THRESHOLD), and the block layer would merge neighbours
// into requests of up to max_sectors_kb. Fewer and larger requests keep a disk less busy: reading
// pieces of 1 MiB, 32 in flight, was 25% slower when they were merged to 4 MiB. Small transfers
// gain by merging.
constexpr std::uint64_t kUnmergedBytes = 128 * 1024;
constexpr unsigned kUnpluggedCalls = 2;
// Returns the length of the next region to register. The kernel keeps huge pages whole only in a
// buffer that has no other pages (rsrc.c, io_check_coalesce_buffer), and every small page of a
// transfer costs time.
std::uint64_t region_bytes(const std::byte* data, std::uint64_t bytes) {
  constexpr std::uint64_t kHugePage = 2 * kMiB;
  const std::uint64_t into_page = reinterpret_cast<std::uintptr_t>(data) % kHugePage;
  if (into_page != 0) return std::min(bytes, kHugePage - into_page);
  return bytes < kHugePage ? bytes : std::min(bytes / kHugePage * kHugePage, kMaxRegionBytes);
}

// Longest sleep of the ring thread. Work arrives by eventfd, so this only bounds the cost of a lost
// wake-up.
constexpr __kernel_timespec kTick{1, 0};

std::string error_text(int error_number) {
  return std::strerror(error_number);
}

// Time for which the kernel's submission thread polls for work before it sleeps.
constexpr unsigned kIdleMs = 20;

// Owns the ring, created with the best flags that the kernel accepts.
class Ring {
 public:
  Ring(unsigned entries, bool submission_thread) {
    if (submission_thread) {
      io_uring_params params{};
      params.flags = IORING_SETUP_SQPOLL;
      params.sq_thread_idle = kIdleMs;
      int status = io_uring_queue_init_params(entries, &ring_, &params);
      // Before Linux 5.11 such a ring accepts only registered files.
      if (status >= 0 && (params.features & IORING_FEAT_SQPOLL_NONFIXED) != 0) return;
      if (status >= 0) {
        io_uring_queue_exit(&ring_);
        status = -EOPNOTSUPP;
      }
      log(LogLevel::kWarning, "io_uring: a kernel thread for submissions (SQPOLL) was refused: " +
                                  error_text(-status) + "; the ring works without one");
    }
    constexpr std::array<unsigned, 3> flag_sets{
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0};
    int status = -EINVAL;
    for (const unsigned flags : flag_sets) {
      status = io_uring_queue_init(entries, &ring_, flags);
      if (status != -EINVAL) break;
    }
    if (status < 0) throw IoError("io_uring_setup", "io_uring", 0, 0, -status);
  }
  ~Ring() { io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
};

struct Region {
  std::byte* begin;
  std::byte* end;
  int slot;
};

struct FreeBytes {
  void operator()(std::byte* data) const { std::free(data); }
};

class IoUringEngine final : public QueuedEngine {
 public:
  explicit IoUringEngine(const StorageOptions& options);
  ~IoUringEngine() override;

  std::string name() const override { return "io_uring"; }
  void register_memory(void* data, std::uint64_t bytes) override;

 protected:
  void wake_locked() SLUICE_REQUIRES(mutex_) override;
  void attach(const std::shared_ptr<OpenFile>& file) override;
  void detach(const std::shared_ptr<OpenFile>& file) override;

 private:
  // A piece in flight.
  struct Slot {
    ActiveRequestPtr request;
    PieceTransfer transfer;
    int bounce = -1;
  };

  void run(std::promise<void> started) noexcept;
  void set_up();
  void loop();
  bool collect();
  bool issue();
  bool has_slot(StorageOp op) const;
  bool start_piece(const ActiveRequestPtr& request);
  void queue_call(std::uint32_t slot_index);
  void arm_wake();
  io_uring_sqe* next_sqe();
  void submit_queued();
  void submit_and_wait();
  void reap();
  void complete(std::uint32_t slot_index, std::int64_t result);
  void end_slot(std::uint32_t slot_index);
  void run_broken(int error_number) noexcept;
  void await_kernel() noexcept;
  void run_on_ring(std::function<void()> command);
  int register_region(std::byte* data, std::uint64_t bytes);
  bool set_file_slot(int slot, int descriptor);
  int registered_slot(const std::byte* data, std::uint64_t bytes) const;

  void wake_ring();

  FileDescriptor wake_event_;
  std::uint64_t wake_value_ = 0;  // the kernel writes it
  // By StorageOp: the ring thread sleeps, or is about to, and has a slot free.
  std::array<bool, 2> wants_ SLUICE_GUARDED_BY(mutex_){};
  std::vector<std::function<void()>> commands_ SLUICE_GUARDED_BY(mutex_);

  // Used by the ring thread only:
  std::unique_ptr<Ring> ring_;
  RequestQueue waiting_;                      // requests with pieces still to cut
  std::array<std::uint32_t, 2> under_way_{};  // pieces, by StorageOp
  std::array<std::uint64_t, 2> under_way_bytes_{};
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::unique_ptr<std::byte[], FreeBytes> bounce_;
  std::vector<int> free_bounces_;
  std::uint64_t calls_queued_ = 0;  // transfers since the ring was created
  std::uint64_t calls_reaped_ = 0;
  bool wake_unsubmitted_ = false;      // the eventfd read is queued but not submitted
  bool edge_write_under_way_ = false;  // one at a time (aligned_transfer.hpp)
  bool wake_armed_ = false;
  std::vector<Region> regions_;
  bool buffers_registered_ = false;
  bool files_registered_ = false;
  std::vector<int> free_file_slots_;

  std::jthread thread_;
};

IoUringEngine::IoUringEngine(const StorageOptions& options)
    : QueuedEngine(options), wake_event_(::eventfd(0, EFD_CLOEXEC)) {
  if (wake_event_.get() < 0) throw IoError("eventfd", "io_uring", 0, 0, errno);
  std::promise<void> started;
  auto outcome = started.get_future();
  thread_ = start_thread(
      "io_uring", [this, promise = std::move(started)]() mutable { run(std::move(promise)); });
  try {
    if (outcome.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      throw TimeoutError("io_uring to be set up");
    }
    outcome.get();
  } catch (...) {
    {
      // A set-up that ends late must not serve an engine that no longer exists.
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    thread_.join();
    throw;
  }
}

// Waits without a deadline for transfers in flight: memory that the kernel may still write must not
// be freed. The kernel ends every block request, at the latest with an error after the driver's
// timeout.
IoUringEngine::~IoUringEngine() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    wake_ring();
  }
  thread_.join();
}

void IoUringEngine::wake_locked() {
  // The ring thread looks at incoming_ after every callback.
  if (on_completion_thread()) return;
  // If all slots of its direction are taken, a completion comes before the request could start.
  if (!wants_[static_cast<std::size_t>(incoming_.back()->request.op)]) return;
  wants_ = {false, false};  // one wake-up is enough
  wake_ring();
}

void IoUringEngine::wake_ring() {
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full, which wakes the thread just as well.
  if (::write(wake_event_.get(), &one, sizeof one) < 0 && errno != EAGAIN) {
    log(LogLevel::kWarning, "io_uring: waking the ring thread failed: " + error_text(errno));
  }
}

void IoUringEngine::run(std::promise<void> started) noexcept {
  completion_thread_ = std::this_thread::get_id();
  try {
    set_up();
  } catch (...) {
    started.set_exception(std::current_exception());
    return;
  }
  started.set_value();
  try {
    loop();
  } catch (const IoError& error) {
    log(LogLevel::kWarning, std::string("the io_uring ring broke: ") + error.what());
    run_broken(error.error_number);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("the io_uring thread failed: ") + error.what());
    run_broken(EIO);
  }
}

void IoUringEngine::set_up() {
  const std::uint32_t slots = options_.queue_depth + options_.write_depth;
  // One more entry than pieces, for the eventfd read.
  ring_ = std::make_unique<Ring>(slots + 1, options_.submission_thread);
  slots_.resize(slots);
  for (std::uint32_t i = 0; i < slots; ++i) free_slots_.push_back(i);
  bounce_.reset(static_cast<std::byte*>(
      std::aligned_alloc(kMaxAlignmentBytes, kBounceBuffers * kBounceBytes)));
  if (!bounce_) throw std::bad_alloc();
  for (int i = 0; i < kBounceBuffers; ++i) free_bounces_.push_back(i);
  if (io_uring_register_files_sparse(ring_->get(), kFileSlots) == 0) {
    files_registered_ = true;
    for (int i = kFileSlots; i-- > 0;) free_file_slots_.push_back(i);
  }
  buffers_registered_ = io_uring_register_buffers_sparse(ring_->get(), kBufferSlots) == 0;
}

void IoUringEngine::loop() {
  while (collect()) {
    if (issue()) continue;  // a callback may have submitted more
    submit_and_wait();
    reap();
  }
}

// Takes the submitted requests and runs commands. Returns false when stopped and idle.
bool IoUringEngine::collect() {
  std::vector<std::function<void()>> commands;
  bool stopping = false;
  {
    const MutexLock lock(mutex_);
    while (!incoming_.empty()) {
      waiting_.push(incoming_.front());
      incoming_.pop_front();
    }
    commands.swap(commands_);
    stopping = stopping_;
    wants_ = {has_slot(StorageOp::kRead), has_slot(StorageOp::kWrite)};
  }
  for (const auto& command : commands) command();
  if (!stopping) return true;
  waiting_.for_each([](const ActiveRequestPtr& request) { request->fail(ECANCELED); });
  return !waiting_.empty() || free_slots_.size() != slots_.size() || wake_armed_;
}

// Starts pieces. Returns true if a request ended here (empty, failed or cancelled) and its callback
// ran.
bool IoUringEngine::issue() {
  bool called_back = false;
  std::array<bool, 2> blocked{};  // by StorageOp
  while (true) {
    const ActiveRequestPtr request = waiting_.next(!blocked[0] && has_slot(StorageOp::kRead),
                                                   !blocked[1] && has_slot(StorageOp::kWrite));
    if (!request) return called_back;
    if (!request->cursor.done() && !start_piece(request)) {
      blocked[static_cast<std::size_t>(request->request.op)] = true;
    }
    if (!request->cursor.done()) continue;
    waiting_.erase(request);
    if (!request->ended()) continue;  // its last piece in flight will end it
    finish(request);
    called_back = true;
  }
}

bool IoUringEngine::has_slot(StorageOp op) const {
  const auto direction = static_cast<std::size_t>(op);
  return under_way_bytes_[direction] < options_.queue_bytes &&
         under_way_[direction] <
             (op == StorageOp::kRead ? options_.queue_depth : options_.write_depth);
}

// Returns false if no bounce buffer or edge turn is free; a completion will free one.
bool IoUringEngine::start_piece(const ActiveRequestPtr& request) {
  const Piece piece = request->cursor.peek();
  const StorageOp op = request->request.op;
  const bool edge_write = piece.kind == Piece::Kind::kEdge && op == StorageOp::kWrite;
  if (edge_write && edge_write_under_way_) return false;
  const bool bounces = piece.kind != Piece::Kind::kDirect;
  if (bounces && free_bounces_.empty()) return false;
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  if (bounces) {
    slot.bounce = free_bounces_.back();
    free_bounces_.pop_back();
  }
  if (edge_write) edge_write_under_way_ = true;
  std::byte* bounce = slot.bounce < 0 ? nullptr : bounce_.get() + slot.bounce * kBounceBytes;
  slot.request = request;
  slot.transfer = PieceTransfer(piece, op, request->file->file.alignment(), bounce);
  request->cursor.pop();
  ++request->pieces_in_flight;
  ++under_way_[static_cast<std::size_t>(op)];
  under_way_bytes_[static_cast<std::size_t>(op)] += piece.bytes;
  waiting_.count_start(request);
  queue_call(index);
  return true;
}

void IoUringEngine::queue_call(std::uint32_t slot_index) {
  const Slot& slot = slots_[slot_index];
  const OpenFile& file = *slot.request->file;
  const auto call = slot.transfer.call();
  const auto length = static_cast<unsigned>(call.bytes);
  const int descriptor = file.slot >= 0 ? file.slot : file.file.descriptor();
  const int region = registered_slot(call.data, call.bytes);
  io_uring_sqe* sqe = next_sqe();
  if (call.op == StorageOp::kRead) {
    if (region >= 0) {
      io_uring_prep_read_fixed(sqe, descriptor, call.data, length, call.offset, region);
    } else {
      io_uring_prep_read(sqe, descriptor, call.data, length, call.offset);
    }
  } else if (region >= 0) {
    io_uring_prep_write_fixed(sqe, descriptor, call.data, length, call.offset, region);
  } else {
    io_uring_prep_write(sqe, descriptor, call.data, length, call.offset);
  }
  if (file.slot >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, slot_index);
  ++calls_queued_;
  if (call.bytes >= kUnmergedBytes && io_uring_sq_ready(ring_->get()) >= kUnpluggedCalls) {
    submit_queued();
  }
}

// Submits the queued calls. Calls that the kernel cannot take now (EAGAIN, EBUSY) stay queued.
void IoUringEngine::submit_queued() {
  const int status = io_uring_submit(ring_->get());
  if (io_uring_sq_ready(ring_->get()) == 0) wake_unsubmitted_ = false;
  if (status < 0 && status != -EAGAIN && status != -EBUSY && status != -EINTR) {
    throw IoError("io_uring_enter", "io_uring", 0, 0, -status);
  }
}

void IoUringEngine::arm_wake() {
  io_uring_sqe* sqe = next_sqe();
  io_uring_prep_read(sqe, wake_event_.get(), &wake_value_, sizeof wake_value_, 0);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  wake_armed_ = wake_unsubmitted_ = true;
}

io_uring_sqe* IoUringEngine::next_sqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_->get());
  if (sqe == nullptr) {
    // Calls in flight never outnumber the ring's entries, but calls that a busy kernel has not
    // taken yet (EAGAIN, EBUSY) occupy the queue.
    const int status = io_uring_submit(ring_->get());
    sqe = io_uring_get_sqe(ring_->get());
    if (sqe == nullptr)
      throw IoError("io_uring_enter", "io_uring", 0, 0, status < 0 ? -status : EBUSY);
  }
  return sqe;
}

void IoUringEngine::submit_and_wait() {
  if (!wake_armed_) {
    bool stopping = false;
    {
      const MutexLock lock(mutex_);
      stopping = stopping_;
    }
    if (!stopping) arm_wake();
  }
  if (!wake_armed_ && free_slots_.size() == slots_.size()) return;  // nothing will complete
  io_uring_cqe* cqe = nullptr;
  __kernel_timespec tick = kTick;
  const int status = io_uring_submit_and_wait_timeout(ring_->get(), &cqe, 1, &tick, nullptr);
  if (io_uring_sq_ready(ring_->get()) == 0) wake_unsubmitted_ = false;
  switch (status < 0 ? -status : 0) {
    case 0:
    case ETIME:
    case EINTR:
      return;
    case EAGAIN:  // no memory for requests now
    case EBUSY:   // completions must be reaped first
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    default:
      throw IoError("io_uring_enter", "io_uring", 0, 0, -status);
  }
}

void IoUringEngine::reap() {
  // Copies completions out before it handles any: handling queues new calls and runs callbacks.
  std::array<std::pair<std::uint64_t, int>, 64> batch;
  while (true) {
    std::size_t count = 0;
    unsigned head = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(ring_->get(), head, cqe) {
      if (count == batch.size()) break;
      batch[count++] = {cqe->user_data, cqe->res};
    }
    io_uring_cq_advance(ring_->get(), static_cast<unsigned>(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (batch[i].first == kWakeTag) {
        wake_armed_ = false;
      } else {
        ++calls_reaped_;
        complete(static_cast<std::uint32_t>(batch[i].first), filtered(batch[i].second));
      }
    }
    if (count < batch.size()) return;
  }
}

void IoUringEngine::complete(std::uint32_t slot_index, std::int64_t result) {
  Slot& slot = slots_[slot_index];
  if (result < 0 && retry_buffered(*slot.request, slot.transfer, result)) {
    queue_call(slot_index);
    return;
  }
  switch (slot.transfer.advance(result)) {
    case PieceTransfer::State::kContinue:
      queue_call(slot_index);
      return;
    case PieceTransfer::State::kFailed:
      slot.request->fail(slot.transfer.error());
      break;
    case PieceTransfer::State::kDone:
      break;
  }
  end_slot(slot_index);
}

void IoUringEngine::end_slot(std::uint32_t slot_index) {
  Slot& slot = slots_[slot_index];
  const ActiveRequestPtr request = std::move(slot.request);
  if (slot.bounce >= 0) free_bounces_.push_back(slot.bounce);
  slot.bounce = -1;
  free_slots_.push_back(slot_index);
  const StorageOp op = request->request.op;
  const Piece& piece = slot.transfer.piece();
  if (piece.kind == Piece::Kind::kEdge && op == StorageOp::kWrite) edge_write_under_way_ = false;
  request->resubmitted += slot.transfer.resubmitted();
  --request->pieces_in_flight;
  --under_way_[static_cast<std::size_t>(op)];
  under_way_bytes_[static_cast<std::size_t>(op)] -= piece.bytes;
  if (!request->ended()) return;
  // A request that failed early is still queued.
  if (request->error) waiting_.erase(request);
  finish(request);
}

// Runs after the kernel refused the ring itself (never observed; a bug, or a kernel without
// memory). Every request ends with that error until the engine is destroyed. Transfers that the
// kernel holds are awaited first, because an ended request's memory may be freed.
void IoUringEngine::run_broken(int error_number) noexcept {
  await_kernel();
  ring_.reset();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].request) continue;
    slots_[i].request->fail(error_number);
    end_slot(i);
  }
  wake_armed_ = false;
  buffers_registered_ = files_registered_ = false;
  while (true) {
    waiting_.for_each([=](const ActiveRequestPtr& request) { request->fail(error_number); });
    issue();
    if (!collect()) return;
    if (!waiting_.empty()) continue;
    std::uint64_t value = 0;
    // EINTR only causes another round.
    if (::read(wake_event_.get(), &value, sizeof value) < 0 && errno != EINTR) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// Waits until every transfer that the kernel has taken is complete, but at most a minute. If the
// ring cannot even report completions, the block layer's own timeout (30 s by default) has ended
// the transfers by then.
void IoUringEngine::await_kernel() noexcept {
  const auto deadline = Deadline::after_seconds(60);
  // A kernel thread (SQPOLL) may still take queued calls.
  const bool stays = (ring_->get()->flags & IORING_SETUP_SQPOLL) == 0;
  const std::uint64_t unsubmitted =
      stays ? io_uring_sq_ready(ring_->get()) - (wake_unsubmitted_ ? 1 : 0) : 0;
  while (calls_reaped_ + unsubmitted < calls_queued_) {
    io_uring_get_events(ring_->get());  // may fail with the ring; completions may come even so
    io_uring_cqe* cqe = nullptr;
    if (io_uring_peek_cqe(ring_->get(), &cqe) == 0) {
      if (cqe->user_data != kWakeTag) ++calls_reaped_;
      io_uring_cqe_seen(ring_->get(), cqe);
      continue;
    }
    if (deadline.passed()) {
      log(LogLevel::kWarning,
          "io_uring: some transfers have not ended; the kernel may still write their memory");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void IoUringEngine::run_on_ring(std::function<void()> command) {
  if (on_completion_thread()) {
    command();
    return;
  }
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(command));
  auto outcome = task->get_future();
  {
    const MutexLock lock(mutex_);
    commands_.push_back([task] { (*task)(); });
    wake_ring();
  }
  const auto deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
  if (outcome.wait_until(deadline.time()) != std::future_status::ready) {
    throw TimeoutError("the io_uring thread to take a registration");
  }
  outcome.get();
}

void IoUringEngine::register_memory(void* data, std::uint64_t bytes) {
  // Shared, because the command may run after its caller has timed out.
  const auto outcome = std::make_shared<int>(0);
  run_on_ring([this, data, bytes, outcome] {
    auto* begin = static_cast<std::byte*>(data);
    for (std::uint64_t done = 0; done < bytes && *outcome == 0;) {
      const std::uint64_t part = region_bytes(begin + done, bytes - done);
      *outcome = register_region(begin + done, part);
      done += part;
    }
  });
  const int error = *outcome;
  if (error == 0) return;
  log(LogLevel::kWarning, "io_uring: registering " + format_bytes(bytes) + " of memory failed (" +
                              error_text(error) +
                              (error == ENOMEM ? "; raise RLIMIT_MEMLOCK, `ulimit -l`" : "") +
                              "); transfers work without it, at some CPU cost");
}

// Registers one region. Returns an errno, or 0.
int IoUringEngine::register_region(std::byte* data, std::uint64_t bytes) {
  if (!buffers_registered_) return ENOTSUP;
  if (regions_.size() >= kBufferSlots) return ENOSPC;
  const auto slot = static_cast<int>(regions_.size());
  const iovec vector{data, bytes};
  const int status = io_uring_register_buffers_update_tag(ring_->get(), static_cast<unsigned>(slot),
                                                          &vector, nullptr, 1);
  if (status < 0) return -status;
  regions_.push_back({data, data + bytes, slot});
  return 0;
}

int IoUringEngine::registered_slot(const std::byte* data, std::uint64_t bytes) const {
  for (const Region& region : regions_) {
    if (data >= region.begin && data + bytes <= region.end) return region.slot;
  }
  return -1;
}

void IoUringEngine::attach(const std::shared_ptr<OpenFile>& file) {
  run_on_ring([this, file] {
    if (!files_registered_ || free_file_slots_.empty()) return;
    const int slot = free_file_slots_.back();
    // If the kernel refuses, the file is used by its descriptor, which is only a little slower.
    if (!set_file_slot(slot, file->file.descriptor())) return;
    free_file_slots_.pop_back();
    file->slot = slot;
  });
}

void IoUringEngine::detach(const std::shared_ptr<OpenFile>& file) {
  if (file->slot < 0) return;
  run_on_ring([this, file] {
    // A slot that cannot be cleared is not reused.
    if (files_registered_ && set_file_slot(file->slot, -1)) free_file_slots_.push_back(file->slot);
  });
}

bool IoUringEngine::set_file_slot(int slot, int descriptor) {
  return io_uring_register_files_update(ring_->get(), static_cast<unsigned>(slot), &descriptor,
                                        1) == 1;
}

}  // namespace

std::unique_ptr<StorageEngine> make_io_uring_engine(const StorageOptions& options) {
  return std::make_unique<IoUringEngine>(options);
}

}  // namespace sluice::offload
