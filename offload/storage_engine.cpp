// The choice of an engine, and waiting for one request.
//
// "auto" probes io_uring by creating a small ring, because containers and sysctl settings may block
// it, and falls back to posix. submit_and_wait() keeps its result in shared memory: the callback
// may run after the waiting thread has given up.
#include "offload/storage_engine.hpp"

#include <liburing.h>

#include <cstring>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "offload/queued_engine.hpp"

namespace sluice::offload {

void submit_and_wait(std::uint64_t bytes,
                     const std::function<void(StorageEngine::Callback)>& submit) {
  struct Outcome {
    Mutex mutex;
    CondVar ready;
    bool done SLUICE_GUARDED_BY(mutex) = false;
    std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  };
  // Shared, because the callback may run after the wait has timed out.
  const auto outcome = std::make_shared<Outcome>();
  submit([outcome](std::exception_ptr error) {
    const MutexLock lock(outcome->mutex);
    outcome->done = true;
    outcome->error = std::move(error);
    outcome->ready.notify_all();
  });
  MutexLock lock(outcome->mutex);
  const auto deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
  if (!outcome->ready.wait_until(lock, deadline,
                                 [&]() SLUICE_REQUIRES(outcome->mutex) { return outcome->done; })) {
    throw TimeoutError("a storage transfer of " + std::to_string(bytes) + " bytes");
  }
  if (outcome->error) std::rethrow_exception(outcome->error);
}

void StorageEngine::transfer(const StorageRequest& request) {
  submit_and_wait(request.bytes, [&](Callback done) { submit(request, std::move(done)); });
}

std::string io_uring_unavailable_reason() {
  io_uring ring{};
  const int status = io_uring_queue_init(2, &ring, 0);
  if (status < 0) {
    std::string reason = std::string("io_uring_setup: ") + std::strerror(-status);
    if (status == -EPERM)
      reason += " (blocked by a container profile or sysctl kernel.io_uring_disabled)";
    if (status == -ENOSYS) reason += " (the kernel has no io_uring)";
    return reason;
  }
  // EXT_ARG (Linux 5.11): a wait can have a timeout without a timeout request.
  const bool recent = (ring.features & IORING_FEAT_EXT_ARG) != 0;
  io_uring_queue_exit(&ring);
  return recent ? std::string() : "the kernel's io_uring is older than Linux 5.11";
}

std::unique_ptr<StorageEngine> make_storage_engine(const std::string& kind,
                                                   const StorageOptions& options) {
  if (kind == "posix") return make_posix_engine(options);
  if (kind != "io_uring" && kind != "auto") {
    throw InputError("storage engine '" + kind + "' is unknown; use auto, io_uring or posix");
  }
  const std::string reason = io_uring_unavailable_reason();
  if (reason.empty()) return make_io_uring_engine(options);
  if (kind == "io_uring") {
    throw InputError("storage engine io_uring cannot be used here: " + reason +
                     "; use posix or auto");
  }
  log(options.submission_thread ? LogLevel::kWarning : LogLevel::kInfo,
      "storage engine posix: io_uring cannot be used here: " + reason +
          (options.submission_thread ? "; there is no kernel thread for submissions (SQPOLL)"
                                     : ""));
  return make_posix_engine(options);
}

}  // namespace sluice::offload
