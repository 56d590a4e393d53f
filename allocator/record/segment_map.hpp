// The segments that an allocator holds at one moment of a record, by address.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace sluice::record {

struct HeldSegment {
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  std::uint64_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::uint64_t live_count = 0;  // allocations that have begun in it and not ended
};

// Segments share no byte. Addresses and ends are below 2^63. A change that contradicts the held
// segments returns false (or nothing) and changes as little as possible.
class SegmentMap {
 public:
  using Entry = std::map<std::uint64_t, HeldSegment>::value_type;

  bool add(std::uint64_t address, const HeldSegment& segment);
  // Removes the segment that begins there, whatever its size. `exact` tells whether its size is
  // `bytes`.
  std::optional<HeldSegment> remove(std::uint64_t address, std::uint64_t bytes, bool& exact);
  // Adds pages of an expandable segment. They join adjacent pages of the same stream, and take
  // their pool and size class.
  bool map(std::uint64_t address, HeldSegment pages);
  // Removes a part of an expandable segment and returns it. The parts on both sides stay.
  std::optional<HeldSegment> unmap(std::uint64_t address, std::uint64_t bytes);

  // The segment that holds this byte, or null.
  Entry* find(std::uint64_t address);
  // An allocation that began at this address begins or ends.
  void begin_allocation(std::uint64_t address);
  void end_allocation(std::uint64_t address);

  const std::map<std::uint64_t, HeldSegment>& all() const { return segments_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  // The bytes of segments of the default pool that are not expandable and hold no allocation. The
  // caching allocator frees these when its cache is emptied.
  std::uint64_t idle_bytes() const { return idle_bytes_; }

 private:
  using Iterator = std::map<std::uint64_t, HeldSegment>::iterator;
  bool is_free(std::uint64_t address, std::uint64_t bytes) const;
  void insert(std::uint64_t address, const HeldSegment& segment);
  HeldSegment erase(Iterator position);

  std::map<std::uint64_t, HeldSegment> segments_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t idle_bytes_ = 0;
};

}  // namespace sluice::record
