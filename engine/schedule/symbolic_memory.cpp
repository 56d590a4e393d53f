#include "engine/schedule/symbolic_memory.hpp"

#include <algorithm>

namespace sluice::symbolic {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

void TermHash::add(std::uint64_t word) {
  state_.low = mix(state_.low * 0x9e3779b97f4a7c15ull + word + 1);
  state_.high = mix((state_.high ^ word) + 0xd1b54a32d192ed03ull);
}

Term hash_words(std::initializer_list<std::uint64_t> words) {
  TermHash hash;
  for (const std::uint64_t word : words) hash.add(word);
  return hash.value();
}

bool SymbolicMemory::locate(const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                            std::vector<Extent>& extents) const {
  extents.clear();
  if (begin >= end || end > buffer.bytes) return false;
  if (!buffer.window) {
    extents.push_back({static_cast<std::size_t>(buffer.tier), buffer.offset_bytes + begin,
                       buffer.offset_bytes + end});
    return true;
  }
  const std::uint64_t slot_bytes = schedule_.slot_bytes;
  if (slot_bytes == 0 || (end - 1) / slot_bytes >= buffer.slots.size()) return false;
  while (begin < end) {
    const std::uint64_t stop = std::min(end, (begin / slot_bytes + 1) * slot_bytes);
    const std::uint64_t at = buffer.slots[begin / slot_bytes] * slot_bytes + begin % slot_bytes;
    extents.push_back({kTierCount, at, at + (stop - begin)});
    begin = stop;
  }
  return true;
}

void SymbolicMemory::put(Space& space, std::uint64_t begin, const Cell& cell) {
  auto at = space.upper_bound(begin);
  if (at != space.begin()) --at;
  while (at != space.end() && at->first < cell.end) {
    const std::uint64_t old_begin = at->first;
    const Cell old = at->second;
    if (old.end <= begin) {
      ++at;
      continue;
    }
    at = space.erase(at);
    if (old_begin < begin) {
      Cell head = old;
      head.end = begin;
      space.emplace(old_begin, head);
    }
    if (old.end > cell.end) {
      Cell tail = old;
      tail.origin += cell.end - old_begin;
      at = space.emplace(cell.end, tail).first;
    }
  }
  space[begin] = cell;
}

void SymbolicMemory::store(const Buffer& buffer, const Part& part, bool freed) {
  std::vector<Extent> extents;
  if (!locate(buffer, part.begin, part.end, extents)) return;
  std::uint64_t origin = part.origin;
  for (const Extent& extent : extents) {
    put(spaces_[extent.space], extent.begin, Cell{extent.end, part.term, origin, buffer.id, freed});
    origin += extent.end - extent.begin;
  }
}

void SymbolicMemory::write(const Buffer& buffer, const Part& part) {
  store(buffer, part, false);
}

void SymbolicMemory::poison(const Buffer& buffer) {
  store(buffer, Part{0, buffer.bytes, Term{}, 0}, true);
}

std::vector<Part> SymbolicMemory::read(const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                                       std::string& error) const {
  std::vector<Part> parts;
  std::vector<Extent> extents;
  if (!locate(buffer, begin, end, extents)) {
    error = "bytes outside the buffer";
    return parts;
  }
  std::uint64_t offset = begin;  // in the buffer, of extent.begin
  for (const Extent& extent : extents) {
    const Space& space = spaces_[extent.space];
    std::uint64_t reached = extent.begin;
    auto at = space.upper_bound(extent.begin);
    if (at != space.begin()) --at;
    for (; at != space.end() && at->first < extent.end; ++at) {
      const Cell& cell = at->second;
      if (cell.end <= extent.begin) continue;
      const std::uint64_t from = std::max(at->first, extent.begin);
      const std::uint64_t to = std::min(cell.end, extent.end);
      if (from != reached) error = "memory that was never written";
      if (cell.freed) error = "freed memory";
      if (cell.owner != buffer.id) {
        error = "memory that now holds buffer " + std::to_string(cell.owner);
      }
      reached = to;
      Part part{offset + (from - extent.begin), offset + (to - extent.begin), cell.term,
                cell.origin + (from - at->first)};
      if (!parts.empty() && parts.back().end == part.begin && parts.back().term == part.term &&
          parts.back().origin + (parts.back().end - parts.back().begin) == part.origin) {
        parts.back().end = part.end;
      } else {
        parts.push_back(part);
      }
    }
    if (reached != extent.end) error = "memory that was never written";
    offset += extent.end - extent.begin;
  }
  return parts;
}

}  // namespace sluice::symbolic
