// Finds the cache of the calling thread. Each thread keeps the last cache that it used, with the
// serial number of its ThreadCaches: a hit is one thread-local load and one comparison. A miss
// looks through the thread's seats, one for each allocator that it has used. A new seat takes an
// idle cache if there is one, else a new cache, and its destructor at the end of the thread makes
// the cache idle. So a cache belongs to one living thread at a time, and there are never more
// caches than threads at once, except for one (State::last): threads share it if they allocate
// after their seats are destroyed.
#include "allocator/caching/thread_cache.hpp"

#include <atomic>

namespace sluice::allocator {

namespace detail {
constinit thread_local LastThreadCache last_thread_cache;
}  // namespace detail

// Set when thread_seats is destroyed. It is trivial, so it can be read after that.
static constinit thread_local bool thread_seats_gone = false;

// The caches of this thread, by allocator. Its destructor makes them idle when the thread ends.
struct ThreadCacheSeats {
  struct Seat {
    std::uint64_t serial;
    ThreadCache* cache;
    std::weak_ptr<ThreadCaches::State> state;  // expires with the allocator
  };
  std::vector<Seat> seats;

  ~ThreadCacheSeats() {
    for (const Seat& seat : seats) {
      if (const auto state = seat.state.lock()) {
        const MutexLock lock(state->mutex);
        state->idle.push_back(seat.cache);  // cannot throw: add() reserved the room
      }
    }
    detail::last_thread_cache = {};
    thread_seats_gone = true;
  }
};

namespace {
thread_local ThreadCacheSeats thread_seats;
}  // namespace

std::uint64_t ThreadCaches::next_serial() {
  static std::atomic<std::uint64_t> serial = 0;
  return serial.fetch_add(1, std::memory_order_relaxed) + 1;
}

ThreadCache& ThreadCaches::find_or_make() {
  if (thread_seats_gone) {
    // A late destructor of an ending thread: another thread may already have taken its cache.
    const MutexLock lock(state_->mutex);
    if (state_->last == nullptr) state_->last = state_->add();
    return *state_->last;
  }
  std::vector<ThreadCacheSeats::Seat>& seats = thread_seats.seats;
  std::erase_if(seats, [](const ThreadCacheSeats::Seat& seat) { return seat.state.expired(); });
  ThreadCache* cache = nullptr;
  for (const ThreadCacheSeats::Seat& seat : seats) {
    if (seat.serial == serial_) cache = seat.cache;
  }
  if (cache == nullptr) {
    seats.reserve(seats.size() + 1);
    const MutexLock lock(state_->mutex);
    if (state_->idle.empty()) state_->idle.push_back(state_->add());
    cache = state_->idle.back();
    state_->idle.pop_back();
    seats.push_back({serial_, cache, state_});
  }
  detail::last_thread_cache = {serial_, cache};
  return *cache;
}

}  // namespace sluice::allocator
