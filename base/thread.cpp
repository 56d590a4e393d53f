#include "base/thread.hpp"

#include <atomic>
#include <system_error>

namespace sluice {
namespace {

std::atomic<ThreadStartHook> start_hook = nullptr;

}  // namespace

ThreadError::ThreadError(std::string_view name, int error)
    : Error("thread '" + std::string(name) +
            "' could not start: " + std::system_category().message(error) +
            "; raise the limit of threads (the container's pids limit, or ulimit -u)"),
      thread_name(name),
      error_number(error) {}

void set_thread_start_hook(ThreadStartHook hook) {
  start_hook = hook;
}

void check_thread_start(const std::string& name) {
  const ThreadStartHook hook = start_hook;
  if (hook == nullptr) return;
  if (const int error = hook(name); error != 0) throw ThreadError(name, error);
}

}  // namespace sluice
