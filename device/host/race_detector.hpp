// Finds unordered conflicting accesses of queued work, by vector clocks (Mattern 1989; the shadow
// state follows FastTrack, Flanagan and Freund, PLDI 2009).
//
// All of it happens when work is queued, not when it runs: which entries are ordered follows from
// the calls alone, so a race is found whatever the timing was. An entry is ordered after: earlier
// entries of its stream; what an event held that its stream was told to wait for; and all that any
// host thread had learned to be finished (Event::synchronize, Event::done, Stream::synchronize)
// when it was queued. Host threads share one clock: they order each other by means that are not
// seen here, so treating them apart would report races that are none. Completion learned by other
// means (a flag that queued work sets) is not seen.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "device/host/host_memory.hpp"

namespace sluice::device {

// Entries finished per stream id.
using VectorClock = std::vector<std::uint64_t>;

class RaceDetector {
 public:
  using StreamId = std::size_t;
  struct Access {
    HostMemory::PhysicalSpan span;
    bool writes = false;
  };

  StreamId add_stream(const std::string& name);

  // An entry is queued that makes these accesses. Returns what is wrong, or nothing; a racing entry
  // leaves no accesses behind, since it will not run.
  std::optional<std::string> enter(StreamId stream, std::span<const Access> accesses);
  // The clock that an event recorded now holds.
  VectorClock clock_of(StreamId stream) const;
  // Later entries of the stream come after the clock.
  void order_after(StreamId stream, const VectorClock& clock);
  // Host threads have learned that all up to the clock has finished.
  void host_learned(const VectorClock& clock);
  // A host thread touches memory now.
  std::optional<std::string> check_host(std::span<const Access> accesses) const;

 private:
  // The time-th entry of a stream.
  struct Epoch {
    StreamId stream = 0;
    std::uint64_t time = 0;  // 0: never
    bool operator==(const Epoch&) const = default;
  };
  // What happened last to the bytes [key, end).
  struct Shadow {
    std::uint64_t end = 0;
    Epoch last_write;
    std::vector<Epoch> reads;  // since that write, none ordered before another
    bool operator==(const Shadow&) const = default;
  };
  using ShadowMap = std::map<std::uint64_t, Shadow>;

  static bool covers(const VectorClock& clock, const Epoch& epoch);
  static void join(VectorClock& clock, const VectorClock& other);
  std::optional<std::string> find_conflict(const VectorClock& clock, const Access& access,
                                           const std::string& actor) const SLUICE_REQUIRES(mutex_);
  void split_at(std::uint64_t address) SLUICE_REQUIRES(mutex_);
  void apply(const VectorClock& clock, Epoch epoch, const Access& access) SLUICE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::string> names_ SLUICE_GUARDED_BY(mutex_);
  std::vector<VectorClock> clocks_ SLUICE_GUARDED_BY(mutex_);  // by stream
  VectorClock host_clock_ SLUICE_GUARDED_BY(mutex_);
  ShadowMap shadows_ SLUICE_GUARDED_BY(mutex_);  // disjoint
};

}  // namespace sluice::device
