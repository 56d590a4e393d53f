#include "tools/sluice/waiting_notice.hpp"

#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "base/units.hpp"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};
constexpr std::chrono::milliseconds kTerminalInterval{1000};
constexpr std::chrono::milliseconds kPipeInterval{10000};

}  // namespace

WaitingNotice::WaitingNotice(Tell tell, Milliseconds patience, Milliseconds interval) {
  try {
    thread_ = std::thread(
        [this, tell = std::move(tell), patience, interval] { run(tell, patience, interval); });
  } catch (const std::system_error&) {  // no thread: no notice
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
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (clears_line_) std::fputs("\r\033[K", stderr);
}

void WaitingNotice::run(const Tell& tell, Milliseconds patience, Milliseconds interval) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (auto next = begin + patience; !changed_.wait_until(lock, next, [this] { return ended_; });
       next += interval) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    lock.unlock();
    tell(passed.count());
    lock.lock();
  }
}

}  // namespace sluice::cli
