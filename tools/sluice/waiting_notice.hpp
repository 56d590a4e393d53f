// A line on stderr while something takes long before the program has anything else to say.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.hpp"

namespace sluice::cli {

// Planning prints nothing, and a model of 7 billion parameters takes it more than a minute.
inline constexpr const char* kPlanningText = "planning the run";

// From its construction to its end: calls `tell` with the seconds that have passed, first after
// `patience`, then every `interval`. A thread of its own calls it, one call at a time, never after
// the destructor. If no thread can be started, there is no notice.
class WaitingNotice {
 public:
  using Tell = std::function<void(double seconds)>;
  using Milliseconds = std::chrono::milliseconds;

  WaitingNotice(Tell tell, Milliseconds patience, Milliseconds interval);
  // Prints "TEXT: 4.0 s so far" after 2 s: then every second, over the same line, on a terminal;
  // every 10 s elsewhere.
  explicit WaitingNotice(const std::string& text);
  ~WaitingNotice();
  WaitingNotice(const WaitingNotice&) = delete;
  WaitingNotice& operator=(const WaitingNotice&) = delete;

 private:
  void run(const Tell& tell, Milliseconds patience, Milliseconds interval);

  Mutex mutex_;
  CondVar changed_;
  bool ended_ SLUICE_GUARDED_BY(mutex_) = false;
  bool clears_line_ = false;  // the destructor removes the line on the terminal
  std::jthread thread_;
};

}  // namespace sluice::cli
