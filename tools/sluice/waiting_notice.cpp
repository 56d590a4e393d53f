#include "tools/sluice/waiting_notice.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/deadline.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};
constexpr std::chrono::milliseconds kTerminalInterval{1000};
constexpr std::chrono::milliseconds kPipeInterval{10000};

}  // namespace

WaitingNotice::WaitingNotice(Tell tell, Milliseconds patience, Milliseconds interval) {
  try {
    thread_ = start_thread("notice", [this, tell = std::move(tell), patience, interval] {
      run(tell, patience, interval);
    });
  } catch (const ThreadError&) {  // no thread: no notice
  }
}

WaitingNotice::WaitingNotice(const std::string& text)
    : WaitingNotice(
          [text, terminal = isatty(STDERR_FILENO) != 0](double seconds) {
            std::fprintf(stderr, "%s%s: %s so far%s", terminal ? "\r\033[K" : "", text.c_str(),
                         format_seconds(seconds).c_str(), terminal ? "" : "\n");
            std::fflush(stderr);
          },
          kPatience, isatty(STDERR_FILENO) != 0 ? kTerminalInterval : kPipeInterval) {
  clears_line_ = isatty(STDERR_FILENO) != 0;
}

WaitingNotice::~WaitingNotice() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (clears_line_) std::fputs("\r\033[K", stderr);
}

void WaitingNotice::run(const Tell& tell, Milliseconds patience, Milliseconds interval) {
  const auto begin = std::chrono::steady_clock::now();
  auto next = begin + patience;
  MutexLock lock(mutex_);
  const auto ended = [this]() SLUICE_REQUIRES(mutex_) { return ended_; };
  while (
      !changed_.wait_until(lock, Deadline::after(next - std::chrono::steady_clock::now()), ended)) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    next += interval;
    lock.unlock();
    tell(passed.count());
    lock.lock();
  }
}

}  // namespace sluice::cli
