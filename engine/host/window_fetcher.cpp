#include "engine/host/window_fetcher.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/thread.hpp"
#include "engine/host/host_session.hpp"

namespace sluice::host {
namespace {

// Fetches ahead that wait at once. More would not start earlier: copies run one by one.
constexpr std::size_t kMostQueued = 4;

constexpr std::uint64_t kUnplanned = std::numeric_limits<std::uint64_t>::max() / 2;

}  // namespace

WindowFetcher::WindowFetcher(HostEngine& engine, const std::vector<PagedUnit>& units,
                             const PagerPlan& plan, UnitHomes& homes)
    : engine_(engine),
      paged_(units),
      homes_(homes),
      windows_(engine.device(), engine.ledger(), units, plan),
      units_(units.size()) {
  streams_.copies = engine.device().create_stream("window fetches");
  streams_.events.resize(units.size());
  for (auto& event : streams_.piece_copied) event = engine.device().create_event();
  for (Events& events : streams_.events) {
    events.fetched = engine.device().create_event();
    events.released = engine.device().create_event();
  }
  thread_ = start_thread("window fetcher", [this] { run(); });
}

WindowFetcher::~WindowFetcher() {
  {
    const MutexLock lock(mutex_);
    work_.stops = true;
    changed_.notify_all();
  }
  thread_.join();
  // Copies under way must end before the windows go.
  streams_.copies.reset();
}

bool WindowFetcher::is_fetching() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const Unit& unit) { return unit.phase == Phase::kFetching; });
}

void WindowFetcher::wait_for_fetch(MutexLock& lock) {
  const bool done =
      changed_.wait_until(lock, Deadline::after_seconds(engine_.options().deadline_s),
                          [this]() SLUICE_REQUIRES(mutex_) { return !is_fetching(); });
  if (!done) throw TimeoutError("the fetch of a unit's weights");
}

void WindowFetcher::drop_last_queued() {
  const std::uint32_t unit = work_.queue.back();
  work_.queue.pop_back();
  units_[unit].phase = Phase::kAway;
  windows_.cancel(unit);
}

void WindowFetcher::quiesce() {
  {
    MutexLock lock(mutex_);
    while (!work_.queue.empty()) drop_last_queued();
    wait_for_fetch(lock);
  }
  streams_.copies->synchronize(Deadline::after_seconds(engine_.options().deadline_s));
}

void WindowFetcher::begin_pass() {
  quiesce();
  const MutexLock lock(mutex_);
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].phase != Phase::kHere) continue;
    if (units_[unit].holds > 0) {
      units_[unit].is_stale = true;
      continue;
    }
    units_[unit].phase = Phase::kAway;
    windows_.release(unit);
  }
  record_.begin_cycle();
  look_ahead();
}

// Planned units by the distance of their next use, and unplanned ones before them, the longest
// unused first.
std::uint64_t WindowFetcher::eviction_rank(std::uint32_t unit) const {
  const Unit& state = units_[unit];
  if (state.phase != Phase::kHere || state.holds > 0) return UnitWindows::kKeep;
  const std::uint64_t distance = record_.next_use(unit);
  if (distance != UseRecord::kNever) return distance + 1;
  return kUnplanned + (work_.counters.uses - state.last_use);
}

bool WindowFetcher::try_claim(std::uint32_t unit, std::uint64_t least) {
  const auto evicted = windows_.claim(unit, least,
                                      [this](std::uint32_t other)
                                          SLUICE_REQUIRES(mutex_) { return eviction_rank(other); });
  if (!evicted) return false;
  for (const std::uint32_t other : *evicted) units_[other].phase = Phase::kAway;
  return true;
}

// Fetches ahead give way to a demand: queued ones at once, one under way when it has ended.
void WindowFetcher::queue_demand(MutexLock& lock, std::uint32_t unit) {
  while (!try_claim(unit, UnitWindows::kKeep)) {
    if (!work_.queue.empty()) {
      drop_last_queued();
    } else if (is_fetching()) {
      wait_for_fetch(lock);
    } else {
      const std::uint64_t slot_bytes = engine_.device().facts().granularity_bytes;
      throw OutOfMemory(Tier::kDevice, Category::kWeight, windows_.slots_of(unit) * slot_bytes,
                        windows_.free_slots() * slot_bytes);
    }
  }
  units_[unit].phase = Phase::kQueued;
  work_.queue.push_front(unit);
  ++work_.counters.demand_fetches;
  changed_.notify_all();
}

void WindowFetcher::look_ahead() {
  std::uint64_t distance = 0;
  for (const std::uint32_t unit : record_.upcoming()) {
    ++distance;
    if (work_.queue.size() >= kMostQueued) return;
    if (units_[unit].phase != Phase::kAway || !has_window(unit)) continue;
    // A unit must not make room for one that is used later.
    if (!try_claim(unit, distance)) return;
    units_[unit].phase = Phase::kQueued;
    work_.queue.push_back(unit);
    ++work_.counters.prefetches;
    changed_.notify_all();
  }
}

void WindowFetcher::wait_until_here(MutexLock& lock, std::uint32_t unit) {
  Unit& state = units_[unit];
  const bool done =
      changed_.wait_until(lock, Deadline::after_seconds(engine_.options().deadline_s),
                          [&state]() SLUICE_REQUIRES(mutex_) {
                            return state.phase == Phase::kHere || state.phase == Phase::kAway;
                          });
  if (!done) throw TimeoutError("the weights of unit '" + paged_[unit].name + "'");
  if (state.phase == Phase::kAway) std::rethrow_exception(std::exchange(state.error, nullptr));
}

void WindowFetcher::acquire(std::uint32_t unit, void* native_stream) {
  if (!has_window(unit)) return;
  const auto begin = std::chrono::steady_clock::now();
  {
    MutexLock lock(mutex_);
    Unit& state = units_[unit];
    record_.note_use(unit);
    state.last_use = ++work_.counters.uses;
    ++state.holds;  // from here on nothing takes its slots
    try {
      if (state.phase == Phase::kAway) queue_demand(lock, unit);
      if (state.phase == Phase::kQueued && work_.queue.front() != unit) {
        std::erase(work_.queue, unit);
        work_.queue.push_front(unit);
      }
      wait_until_here(lock, unit);
    } catch (...) {
      --state.holds;
      throw;
    }
    look_ahead();
  }
  if (engine_.options().cuda) {
    program_stream(native_stream).wait(*streams_.events[unit].fetched);
  } else {
    try {
      streams_.events[unit].fetched->synchronize(
          Deadline::after_seconds(engine_.options().deadline_s), "the copy of a unit's weights");
    } catch (...) {
      const MutexLock lock(mutex_);
      --units_[unit].holds;
      throw;
    }
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  const MutexLock lock(mutex_);
  work_.counters.wait_seconds += waited.count();
}

void WindowFetcher::release(std::uint32_t unit, void* native_stream) {
  if (!has_window(unit)) return;
  MutexLock lock(mutex_);
  Unit& state = units_[unit];
  if (state.holds == 0) {
    throw SessionStateError("unit '" + paged_[unit].name + "' is released but not acquired");
  }
  if (engine_.options().cuda) {
    device::Stream& stream = program_stream(native_stream);
    device::Event& released = *streams_.events[unit].released;
    // The one event stands for the uses of all streams.
    if (state.released_on && *state.released_on != native_stream) stream.wait(released);
    stream.record(released);
    state.released_on = native_stream;
  }
  if (--state.holds > 0 || !state.is_stale) return;
  state.is_stale = false;
  state.phase = Phase::kAway;
  windows_.release(unit);
}

WindowFetcher::Counters WindowFetcher::counters() const {
  const MutexLock lock(mutex_);
  Counters found = work_.counters;
  found.plans = record_.plans();
  found.deviations = record_.deviations();
  return found;
}

device::Stream& WindowFetcher::program_stream(void* native) {
  std::unique_ptr<device::Stream>& stream = streams_.of_program[native];
  if (stream == nullptr) {
    stream = engine_.device().wrap_stream(native, "host program's stream");
  }
  return *stream;
}

void WindowFetcher::run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this]() SLUICE_REQUIRES(mutex_) { return work_.stops || !work_.queue.empty(); });
    if (work_.stops) return;
    const std::uint32_t unit = work_.queue.front();
    work_.queue.pop_front();
    units_[unit].phase = Phase::kFetching;
    const std::vector<std::uint32_t> former = windows_.take_former_owners(unit);
    lock.unlock();
    std::exception_ptr error;
    std::uint64_t mapped = 0;
    try {
      mapped = fetch(unit, former);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    work_.counters.mapped_pages += mapped;
    units_[unit].error = error;
    units_[unit].phase = error ? Phase::kAway : Phase::kHere;
    if (error) {
      windows_.release(unit);
    } else {
      work_.counters.fetched_bytes += paged_[unit].bytes_of(PagedPart::kWeight);
    }
    changed_.notify_all();
  }
}

// Returns the number of pages that were mapped. A slot is written after the last use of its former
// owners, and nobody uses addresses that lead elsewhere from now on.
std::uint64_t WindowFetcher::fetch(std::uint32_t unit, const std::vector<std::uint32_t>& former) {
  const auto deadline = [this] { return Deadline::after_seconds(engine_.options().deadline_s); };
  for (const std::uint32_t owner : former) streams_.copies->wait(*streams_.events[owner].released);
  std::uint64_t mapped = 0;
  if (windows_.needs_mapping(unit)) {
    streams_.copies->synchronize(deadline());
    streams_.events[unit].released->synchronize(deadline(), "the last use of a unit's weights");
    mapped = windows_.map(unit);
  }
  const std::uint64_t bytes = paged_[unit].bytes_of(PagedPart::kWeight);
  const bool stored = homes_.rests_on_storage(unit, PagedPart::kWeight);
  const std::uint64_t piece_bytes = stored ? kPageInPieceBytes : bytes;
  std::uint32_t piece = 0;
  for (std::uint64_t first = 0; first < bytes; first += piece_bytes) {
    const std::uint64_t count = std::min(piece_bytes, bytes - first);
    // The piece's earlier contents must have left it.
    if (stored)
      streams_.piece_copied[piece]->synchronize(deadline(), "the copy of a piece of weights");
    const std::byte* const from = homes_.page_in(unit, PagedPart::kWeight, first, count, piece);
    streams_.copies->copy(windows_.address(unit) + first, from, count,
                          device::CopyKind::kHostToDevice);
    if (stored) streams_.copies->record(*streams_.piece_copied[piece]);
    piece = (piece + 1) % kPageInPieces;
  }
  streams_.copies->record(*streams_.events[unit].fetched);
  return mapped;
}

}  // namespace sluice::host
