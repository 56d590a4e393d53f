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
  std::uint64_t live_count = 0;  // allocations that began in it and have not ended
};

// Segments share no byte. Addresses and ends are below 2^63. Changes that contradict what is held
// return false (or nothing) and change as little as they can.
class SegmentMap {
 public:
  using Entry = std::map<std::uint64_t, HeldSegment>::value_type;

  bool add(std::uint64_t address, const HeldSegment& segment);
  // The segment that begins there, whatever its size; false in `exact` where that differs.
  std::optional<HeldSegment> remove(std::uint64_t address, std::uint64_t bytes, bool& exact);
  // Pages of an expandable segment: they join those of the same stream that they touch, and take
  // pool and size class from them.
  bool map(std::uint64_t address, HeldSegment pages);
  // What is left on either side stays; the part that went is returned.
  std::optional<HeldSegment> unmap(std::uint64_t address, std::uint64_t bytes);

  // The segment that holds this byte, or null.
  Entry* find(std::uint64_t address);
  // An allocation that began at this address begins or ends.
  void begin_allocation(std::uint64_t address);
  void end_allocation(std::uint64_t address);

  const std::map<std::uint64_t, HeldSegment>& all() const { return segments_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  // Of segments of the default pool, not expandable, with no allocation in them: what the caching
  // allocator gives back when it is asked for all.
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
