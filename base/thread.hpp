// Starting threads: every room starts its threads here, so that a machine which refuses one gives
// one typed error, and so that a test can make any start fail.
#pragma once

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace sluice {

// The system refused a thread: the message names it and the limit to raise.
class ThreadError : public Error {
 public:
  ThreadError(std::string_view thread_name, int error_number);
  std::string_view code() const noexcept override { return "thread"; }

  std::string thread_name;
  int error_number;  // errno of pthread_create
};

// For tests: `hook` is called before each start with the thread's name; a result other than 0 is
// the error number with which that start fails. Null removes it. Set it while no thread is being
// started.
using ThreadStartHook = int (*)(const std::string& name);
void set_thread_start_hook(ThreadStartHook hook);

// Throws ThreadError when the hook wants this start to fail.
void check_thread_start(const std::string& name);

// Starts a thread that runs `body`, which must not throw. Debuggers and profilers show the first
// 15 characters of `name`, as many as the kernel keeps. Throws ThreadError.
template <typename Body>
std::jthread start_thread(const std::string& name, Body&& body) {
  check_thread_start(name);
  std::jthread thread;
  try {
    thread = std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw ThreadError(name, error.code().value());
  }
  // A name that the kernel does not take harms nothing.
  static_cast<void>(pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str()));
  return thread;
}

}  // namespace sluice
