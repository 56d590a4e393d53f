// Finds unordered conflicting accesses of queued work, by vector clocks (Mattern 1989; the shadow
// state follows FastTrack, Flanagan and Freund, PLDI 2009).
//
// Each entry of a stream is an epoch (stream, number). A stream's clock holds, for every stream,
// the number of the last entry that its next entry comes after. A shadow holds the last accesses
// of a range of physical bytes. When work is queued, each of its accesses is compared with the
// shadows of its bytes; an epoch there that the stream's clock does not cover is a race. The
// check depends only on the order of the calls, not on when work runs, so it finds a race
// whatever the timing was.
//
// An entry comes after (1) the earlier entries of its stream, (2) the clock of every event that
// its stream waited for, and (3) everything that any host thread had learned to be finished when
// the entry was queued (by Event::synchronize, Event::done or Stream::synchronize). All host
// threads share one clock: they order each other by means that are not visible here, and separate
// clocks would report false races. Completion learned by other means (a flag set by queued work)
// is not seen.
//
// Invariants of the shadows:
//   1. Shadows are disjoint; bytes without a shadow were never touched.
//   2. last_write comes before every epoch of `reads`.
//   3. No epoch of `reads` comes before another: the list holds at most one per stream.
//   4. An entry that races leaves no shadow, since it will not run.
// An access costs O(log n + k r) for n shadows, of which k overlap it, with r reads each.
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

// The number of the last finished entry, by stream id.
using VectorClock = std::vector<std::uint64_t>;

class RaceDetector {
 public:
  using StreamId = std::size_t;
  struct Access {
    HostMemory::PhysicalSpan span;
    bool writes = false;
  };

  StreamId add_stream(const std::string& name);

  // Call when an entry with these accesses is queued. Returns a description of the
  // race, or nothing.
  std::optional<std::string> enter(StreamId stream, std::span<const Access> accesses);
  // The clock of an event recorded now.
  VectorClock clock_of(StreamId stream) const;
  // Makes later entries of the stream come after the clock.
  void order_after(StreamId stream, const VectorClock& clock);
  // Call when a host thread has learned that all entries up to the clock have finished.
  void host_learned(const VectorClock& clock);
  // Checks accesses of a host thread now. Returns a description of the race, or nothing.
  std::optional<std::string> check_host(std::span<const Access> accesses) const;

 private:
  // An entry of a stream by its number.
  struct Epoch {
    StreamId stream = 0;
    std::uint64_t time = 0;  // 0: never
    bool operator==(const Epoch&) const = default;
  };
  // The last accesses of the bytes [key, end).
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
