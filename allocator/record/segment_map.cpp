#include "allocator/record/segment_map.hpp"

#include <iterator>

namespace sluice::record {
namespace {

std::uint64_t idle_part(const HeldSegment& segment) {
  return segment.live_count == 0 && segment.pool == 0 && !segment.is_expandable ? segment.bytes : 0;
}

}  // namespace

bool SegmentMap::is_free(std::uint64_t address, std::uint64_t bytes) const {
  const auto after = segments_.lower_bound(address);
  if (after != segments_.end() && after->first < address + bytes) return false;
  if (after == segments_.begin()) return true;
  const auto before = std::prev(after);
  return before->first + before->second.bytes <= address;
}

void SegmentMap::insert(std::uint64_t address, const HeldSegment& segment) {
  segments_.emplace(address, segment);
  reserved_bytes_ += segment.bytes;
  idle_bytes_ += idle_part(segment);
}

HeldSegment SegmentMap::erase(Iterator position) {
  const HeldSegment segment = position->second;
  reserved_bytes_ -= segment.bytes;
  idle_bytes_ -= idle_part(segment);
  segments_.erase(position);
  return segment;
}

bool SegmentMap::add(std::uint64_t address, const HeldSegment& segment) {
  if (segment.bytes == 0 || !is_free(address, segment.bytes)) return false;
  insert(address, segment);
  return true;
}

std::optional<HeldSegment> SegmentMap::remove(std::uint64_t address, std::uint64_t bytes,
                                              bool& exact) {
  const auto found = segments_.find(address);
  exact = found != segments_.end() && found->second.bytes == bytes;
  if (found == segments_.end()) return std::nullopt;
  return erase(found);
}

bool SegmentMap::map(std::uint64_t address, HeldSegment pages) {
  if (pages.bytes == 0 || !is_free(address, pages.bytes)) return false;
  pages.is_expandable = true;
  const auto joins = [&](const HeldSegment& other) {
    return other.is_expandable && other.stream == pages.stream &&
           (pages.pool == 0 || other.pool == 0 || other.pool == pages.pool);
  };
  const auto take = [&](Iterator neighbour) {
    const HeldSegment taken = erase(neighbour);
    pages.bytes += taken.bytes;
    pages.live_count += taken.live_count;
    if (taken.pool != 0) pages.pool = taken.pool;
    pages.is_small = taken.is_small;
  };
  const auto after = segments_.find(address + pages.bytes);
  if (after != segments_.end() && joins(after->second)) take(after);
  const auto next = segments_.lower_bound(address);
  if (next != segments_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == address && joins(before->second)) {
      address = before->first;
      take(before);
    }
  }
  insert(address, pages);
  return true;
}

std::optional<HeldSegment> SegmentMap::unmap(std::uint64_t address, std::uint64_t bytes) {
  Entry* const found = find(address);
  if (found == nullptr || bytes == 0 || !found->second.is_expandable ||
      address + bytes > found->first + found->second.bytes) {
    return std::nullopt;
  }
  const std::uint64_t begin = found->first;
  const HeldSegment whole = erase(segments_.find(begin));
  // The map does not know which part an allocation lies in. Counts of expandable segments are not
  // used.
  HeldSegment part = whole;
  if (address > begin) {
    part.bytes = address - begin;
    insert(begin, part);
  }
  const std::uint64_t end = begin + whole.bytes;
  if (address + bytes < end) {
    part.bytes = end - (address + bytes);
    part.live_count = 0;
    insert(address + bytes, part);
  }
  part.bytes = bytes;
  part.live_count = 0;
  return part;
}

SegmentMap::Entry* SegmentMap::find(std::uint64_t address) {
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  const auto found = std::prev(after);
  return address - found->first < found->second.bytes ? &*found : nullptr;
}

void SegmentMap::begin_allocation(std::uint64_t address) {
  Entry* const entry = find(address);
  if (entry == nullptr) return;
  idle_bytes_ -= idle_part(entry->second);
  ++entry->second.live_count;
}

void SegmentMap::end_allocation(std::uint64_t address) {
  Entry* const entry = find(address);
  if (entry == nullptr || entry->second.live_count == 0) return;
  --entry->second.live_count;
  idle_bytes_ += idle_part(entry->second);
}

}  // namespace sluice::record
