#include <atomic>
#include <chrono>
#include <utility>

#include "tests/support/cuda_driver/simulated_gpu.hpp"

namespace sluice::simulated {
namespace {

std::atomic<int> current_fault = CUDA_SUCCESS;
thread_local bool is_worker = false;

}  // namespace

void set_fault(CUresult status) {
  current_fault = static_cast<int>(status);
}
CUresult fault() {
  return static_cast<CUresult>(current_fault.load());
}
bool on_worker_thread() {
  return is_worker;
}

void Point::reach() {
  {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    milliseconds_ = std::chrono::duration<double, std::milli>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count();
  }
  changed_.notify_all();
}

bool Point::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Point::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

double Point::milliseconds() const {
  const std::lock_guard lock(mutex_);
  return milliseconds_;
}

Queue::Queue(Memory& memory) : memory_(memory), worker_([this] { run(); }) {}

Queue::~Queue() {
  close();
}

void Queue::push(std::function<void()> work, bool touches_memory) {
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({std::move(work), touches_memory});
  }
  changed_.notify_all();
}

bool Queue::idle() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() && !working_;
}

void Queue::wait_idle() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return entries_.empty() && !working_; });
}

void Queue::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
}

bool Queue::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Queue::run() {
  is_worker = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !entries_.empty(); });
    if (entries_.empty()) break;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    working_ = true;
    lock.unlock();
    if (entry.touches_memory) {
      memory_.open();
      if (fault() == CUDA_SUCCESS) entry.work();
      memory_.close();
    } else {
      entry.work();
    }
    entry.work = nullptr;  // destroys captures before any thread learns that it has finished
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
  ended_ = true;
}

}  // namespace sluice::simulated
