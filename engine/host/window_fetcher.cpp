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
      copies_(engine.device().create_stream("window fetches")),
      events_(units.size()),
      windows_(engine.device(), engine.ledger(), units, plan),
      units_(units.size()) {
  for (auto& event : piece_copied_) event = engine.device().create_event();
  for (Events& events : events_) {
    events.fetched = engine.device().create_event();
    events.released = engine.device().create_event();
  }
  thread_ = start_thread("window fetcher", [this] { run(); });
}

WindowFetcher::~WindowFetcher() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
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
  const std::uint32_t unit = queue_.back();
  queue_.pop_back();
  units_[unit].phase = Phase::kAway;
  windows_.release(unit);
}

void WindowFetcher::quiesce() {
  {
    MutexLock lock(mutex_);
    while (!queue_.empty()) drop_last_queued();
    wait_for_fetch(lock);
  }
  copies_->synchronize(Deadline::after_seconds(engine_.options().deadline_s));
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

// Planned units by the distance of their next use, and unplanned ones before them, the longest unused
// first.
std::uint64_t WindowFetcher::eviction_rank(std::uint32_t unit) const {
  const Unit& state = units_[unit];
  if (state.phase != Phase::kHere || state.holds > 0) return UnitWindows::kKeep;
  const std::uint64_t distance = record_.next_use(unit);
  if (distance != UseRecord::kNever) return distance + 1;
  return kUnplanned + (counters_.uses - state.last_use);
}

bool WindowFetcher::try_claim(std::uint32_t unit, std::uint64_t least) {
  const auto evicted = windows_.claim(
      unit, least,
      [this](std::uint32_t other) SLUICE_REQUIRES(mutex_) { return eviction_rank(other); });
  if (!evicted) return false;
  for (const std::uint32_t other : *evicted) units_[other].phase = Phase::kAway;
  return true;
}

// Fetches ahead give way to a demand: queued ones at once, one under way when it has ended.
void WindowFetcher::queue_demand(MutexLock& lock, std::uint32_t unit) {
  while (!try_claim(unit, UnitWindows::kKeep)) {
    if (!queue_.empty()) {
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
  queue_.push_front(unit);
  ++counters_.demand_fetches;
  changed_.notify_all();
}

void WindowFetcher::look_ahead() {
  std::uint64_t distance = 0;
  for (const std::uint32_t unit : record_.upcoming()) {
    ++distance;
    if (queue_.size() >= kMostQueued) return;
    if (units_[unit].phase != Phase::kAway || !has_window(unit)) continue;
    // A unit must not make room for one that is used later.
    if (!try_claim(unit, distance)) return;
    units_[unit].phase = Phase::kQueued;
    queue_.push_back(unit);
    ++counters_.prefetches;
    changed_.notify_all();
  }
}

void WindowFetcher::wait_until_here(MutexLock& lock, std::uint32_t unit) {
  Unit& state = units_[unit];
  const bool done = changed_.wait_until(
      lock, Deadline::after_seconds(engine_.options().deadline_s),
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
    state.last_use = ++counters_.uses;
    ++state.holds;  // from here on nothing takes its slots
    try {
      if (state.phase == Phase::kAway) queue_demand(lock, unit);
      if (state.phase == Phase::kQueued && queue_.front() != unit) {
        std::erase(queue_, unit);
        queue_.push_front(unit);
      }
      wait_until_here(lock, unit);
    } catch (...) {
      --state.holds;
      throw;
    }
    look_ahead();
  }
  if (engine_.options().cuda) {
    program_stream(native_stream).wait(*events_[unit].fetched);
  } else {
    try {
      events_[unit].fetched->synchronize(Deadline::after_seconds(engine_.options().deadline_s),
                                         "the copy of a unit's weights");
    } catch (...) {
      const MutexLock lock(mutex_);
      --units_[unit].holds;
      throw;
    }
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  const MutexLock lock(mutex_);
  counters_.wait_seconds += waited.count();
}

void WindowFetcher::release(std::uint32_t unit, void* native_stream) {
  if (!has_window(unit)) return;
  MutexLock lock(mutex_);
  Unit& state = units_[unit];
  if (state.holds == 0) {
    throw SessionStateError("unit '" + paged_[unit].name + "' is released but not acquired");
  }
  if (engine_.options().cuda) program_stream(native_stream).record(*events_[unit].released);
  if (--state.holds > 0 || !state.is_stale) return;
  state.is_stale = false;
  state.phase = Phase::kAway;
  windows_.release(unit);
}

WindowFetcher::Counters WindowFetcher::counters() const {
  const MutexLock lock(mutex_);
  Counters found = counters_;
  found.plans = record_.plans();
  found.deviations = record_.deviations();
  return found;
}

device::Stream& WindowFetcher::program_stream(void* native) {
  std::unique_ptr<device::Stream>& stream = streams_[native];
  if (stream == nullptr) {
    stream = engine_.device().wrap_stream(native, "host program's stream");
  }
  return *stream;
}

void WindowFetcher::run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(
        lock, [this]() SLUICE_REQUIRES(mutex_) { return stops_ || !queue_.empty(); });
    if (stops_) return;
    const std::uint32_t unit = queue_.front();
    queue_.pop_front();
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
    counters_.mapped_pages += mapped;
    units_[unit].error = error;
    units_[unit].phase = error ? Phase::kAway : Phase::kHere;
    if (error) {
      windows_.release(unit);
    } else {
      counters_.fetched_bytes += paged_[unit].bytes_of(PagedPart::kWeight);
    }
    changed_.notify_all();
  }
}

// Returns the number of pages that were mapped. A slot is written behind the last use of its former
// owners, and nobody uses addresses that lead elsewhere from now on.
std::uint64_t WindowFetcher::fetch(std::uint32_t unit, const std::vector<std::uint32_t>& former) {
  const auto deadline = [this] {
    return Deadline::after_seconds(engine_.options().deadline_s);
  };
  for (const std::uint32_t owner : former) copies_->wait(*events_[owner].released);
  std::uint64_t mapped = 0;
  if (windows_.needs_mapping(unit)) {
    copies_->synchronize(deadline());
    events_[unit].released->synchronize(deadline(), "the last use of a unit's weights");
    mapped = windows_.map(unit);
  }
  const std::uint64_t bytes = paged_[unit].bytes_of(PagedPart::kWeight);
  const bool stored = homes_.rests_on_storage(unit, PagedPart::kWeight);
  const std::uint64_t piece_bytes = stored ? kPageInPieceBytes : bytes;
  std::uint32_t piece = 0;
  for (std::uint64_t first = 0; first < bytes; first += piece_bytes) {
    const std::uint64_t count = std::min(piece_bytes, bytes - first);
    // The piece's earlier contents must have left it.
    if (stored) piece_copied_[piece]->synchronize(deadline(), "the copy of a piece of weights");
    const std::byte* const from = homes_.page_in(unit, PagedPart::kWeight, first, count, piece);
    copies_->copy(windows_.address(unit) + first, from, count, device::CopyKind::kHostToDevice);
    if (stored) copies_->record(*piece_copied_[piece]);
    piece = (piece + 1) % kPageInPieces;
  }
  copies_->record(*events_[unit].fetched);
  return mapped;
}

}  // namespace sluice::host
