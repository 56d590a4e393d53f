#include "device/host/host_stream.hpp"

#include <utility>

#include "base/thread.hpp"

namespace sluice::device {

namespace {

// A stream may wait for another through a long step. The deadline that matters belongs to the
// caller that waits for the stream.
constexpr double kStreamWaitSeconds = 24 * 3600.0;

// Entries in the queue before launch() blocks. A step has some thousand instructions
// and never blocks.
constexpr std::size_t kQueueLimit = 1 << 16;

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>  // clang 14 deduces none for aggregates
Overloaded(Handlers...)->Overloaded<Handlers...>;

bool disjoint(const void* a, const void* b, std::uint64_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first + bytes <= second || second + bytes <= first;
}

}  // namespace

HostStream::HostStream(std::shared_ptr<HostRuntime> runtime, const std::string& name)
    : runtime_(std::move(runtime)), name_(name) {
  if (runtime_->races) race_id_ = runtime_->races->add_stream(name_);
  worker_ = start_thread(name_, [this] { run_worker(); });
}

HostStream::~HostStream() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  entry_pushed_.notify_all();
  worker_.join();  // drains
  if (runtime_->races) runtime_->races->host_learned(runtime_->races->clock_of(race_id_));
}

void HostStream::push(Entry entry) {
  MutexLock lock(mutex_);
  if (queue_.size() >= kQueueLimit) {
    const Deadline deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
    if (!entry_finished_.wait_until(lock, deadline, [this]() SLUICE_REQUIRES(mutex_) {
          return queue_.size() < kQueueLimit;
        })) {
      throw TimeoutError("room in the queue of stream '" + name_ + "'");
    }
  }
  queue_.push_back(std::move(entry));
  ++pushed_count_;
  lock.unlock();
  entry_pushed_.notify_one();
}

std::exception_ptr HostStream::find_race(std::span<const MemoryAccess> accesses) {
  std::vector<RaceDetector::Access> located;
  std::vector<HostMemory::PhysicalSpan> spans;
  try {
    for (const MemoryAccess& access : accesses) {
      spans.clear();
      runtime_->memory.locate(access.data, access.bytes, spans);
      for (const auto& span : spans) located.push_back({span, access.writes});
    }
    if (const auto race = runtime_->races->enter(race_id_, located)) throw DeviceError(*race);
  } catch (const DeviceError&) {
    return std::current_exception();
  }
  return nullptr;
}

void HostStream::launch(std::function<void()> work, std::span<const MemoryAccess> accesses) {
  SLUICE_CHECK_MSG(work != nullptr, "launched work is not empty");
  if (runtime_->races) {
    if (const std::exception_ptr race = find_race(accesses)) {
      push(Fail{race});
      return;
    }
  }
  push(Launch{std::move(work)});
}

void HostStream::copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) {
  if (bytes == 0) return;
  SLUICE_CHECK_MSG(destination != nullptr && source != nullptr, "a copy has two ends");
  SLUICE_CHECK_MSG(disjoint(destination, source, bytes), "the ends of a copy must not overlap");
  if (runtime_->races) {
    const std::array<MemoryAccess, 2> accesses{
        {{source, bytes, false}, {destination, bytes, true}}};
    if (const std::exception_ptr race = find_race(accesses)) {
      push(Fail{race});
      return;
    }
  }
  push(Copy{destination, source, bytes, kind});
}

void HostStream::record(Event& event) {
  auto* const host_event = dynamic_cast<HostEvent*>(&event);
  SLUICE_CHECK_MSG(host_event != nullptr, "an event is recorded by streams of its own device");
  auto point = std::make_shared<HostEventPoint>(
      name_, runtime_->races ? runtime_->races->clock_of(race_id_) : VectorClock{});
  push(Record{point});
  host_event->set_point(std::move(point));
}

void HostStream::wait(const Event& event) {
  const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
  SLUICE_CHECK_MSG(host_event != nullptr, "a stream waits for events of its own device");
  auto point = host_event->point();
  if (point == nullptr) return;
  if (runtime_->races) runtime_->races->order_after(race_id_, point->clock());
  push(Wait{std::move(point)});
}

void HostStream::synchronize(Deadline deadline) {
  SLUICE_CHECK_MSG(std::this_thread::get_id() != worker_.get_id(),
                   "queued work must not wait for its own stream");
  const VectorClock clock = runtime_->races ? runtime_->races->clock_of(race_id_) : VectorClock{};
  MutexLock lock(mutex_);
  const std::uint64_t target = pushed_count_;
  if (!entry_finished_.wait_until(
          lock, deadline, [&]() SLUICE_REQUIRES(mutex_) { return finished_count_ >= target; })) {
    throw TimeoutError("stream '" + name_ + "' to finish " +
                       std::to_string(target - finished_count_) + " queued entries");
  }
  const std::exception_ptr error = error_;
  lock.unlock();
  if (runtime_->races) runtime_->races->host_learned(clock);
  if (error) std::rethrow_exception(error);
}

void HostStream::run_worker() {
  MutexLock lock(mutex_);
  while (true) {
    // The idle worker waits without a deadline; the destructor ends it.
    entry_pushed_.wait(lock,
                       [this]() SLUICE_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      Entry entry = std::move(queue_.front());
      queue_.pop_front();
      const std::exception_ptr earlier = error_;
      lock.unlock();
      execute(entry, earlier);
    }  // destroys the entry's captures before any thread learns that it has finished
    lock.lock();
    ++finished_count_;
    entry_finished_.notify_all();
  }
}

void HostStream::execute(Entry& entry, const std::exception_ptr& earlier) noexcept {
  if (auto* const record = std::get_if<Record>(&entry)) {
    record->point->reach(earlier);
    return;
  }
  if (earlier) return;
  std::exception_ptr error;
  try {
    std::visit(Overloaded{[](Launch& launch) { launch.work(); },
                          [this](Copy& copy) {
                            runtime_->copy(copy.destination, copy.source, copy.bytes, copy.kind);
                          },
                          [&error](Wait& wait) {
                            error = wait.point->wait(Deadline::after_seconds(kStreamWaitSeconds),
                                                     "an event that a stream waits for");
                          },
                          [&error](Fail& fail) { error = fail.error; }, [](Record&) {}},
               entry);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) {
    const MutexLock lock(mutex_);
    error_ = error;
  }
}

}  // namespace sluice::device
