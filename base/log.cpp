#include "base/log.hpp"

#include <memory>
#include <utility>

#include "base/mutex.hpp"

namespace sluice {

namespace {

using Sink = std::function<void(LogLevel, const std::string&)>;

// A global of the library: worker threads log, and no caller passes them a sink. It is never
// destroyed, so that a thread may log after main() has returned.
struct SinkHolder {
  Mutex mutex;
  std::shared_ptr<const Sink> sink SLUICE_GUARDED_BY(mutex);  // null: drop
};

SinkHolder& holder() {
  static auto* const instance = new SinkHolder;
  return *instance;
}

}  // namespace

void set_log_sink(std::function<void(LogLevel, const std::string&)> sink) {
  auto replacement = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
  const MutexLock lock(holder().mutex);
  holder().sink.swap(replacement);
}

void log(LogLevel level, const std::string& message) {
  std::shared_ptr<const Sink> sink;
  {
    const MutexLock lock(holder().mutex);
    sink = holder().sink;
  }
  // Called outside the lock, so that a sink may itself log or replace the sink.
  if (sink) (*sink)(level, message);
}

}  // namespace sluice
