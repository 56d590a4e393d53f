// Memory as a map of byte ranges to cells. A write splits the cells that it overlaps; a read walks
// the cells of its range, merges neighbours that continue one value, and reports holes, freed bytes
// and bytes that another buffer has overwritten since.
#include "engine/schedule/check/symbolic_memory.hpp"

#include <algorithm>

namespace sluice::schedule::symbolic {
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
  std::uint64_t origin = part.origin;
  for (const MemoryRange& range : ranges_of(schedule_, buffer, part.begin, part.end)) {
    put(spaces_[range.memory], range.begin_bytes,
        Cell{range.end_bytes, part.term, origin, buffer.id, freed});
    origin += range.end_bytes - range.begin_bytes;
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
  const std::vector<MemoryRange> ranges = ranges_of(schedule_, buffer, begin, end);
  if (ranges.empty()) {
    error = "bytes outside the buffer";
    return parts;
  }
  std::uint64_t offset = begin;  // in the buffer, of range.begin_bytes
  for (const MemoryRange& range : ranges) {
    const Space& space = spaces_[range.memory];
    std::uint64_t reached = range.begin_bytes;
    auto at = space.upper_bound(range.begin_bytes);
    if (at != space.begin()) --at;
    for (; at != space.end() && at->first < range.end_bytes; ++at) {
      const Cell& cell = at->second;
      if (cell.end <= range.begin_bytes) continue;
      const std::uint64_t from = std::max(at->first, range.begin_bytes);
      const std::uint64_t to = std::min(cell.end, range.end_bytes);
      if (from != reached) error = "memory that was never written";
      if (cell.freed) error = "freed memory";
      if (cell.owner != buffer.id) {
        error = "memory that now holds buffer " + std::to_string(cell.owner);
      }
      reached = to;
      Part part{offset + (from - range.begin_bytes), offset + (to - range.begin_bytes), cell.term,
                cell.origin + (from - at->first)};
      if (!parts.empty() && parts.back().end == part.begin && parts.back().term == part.term &&
          parts.back().origin + (parts.back().end - parts.back().begin) == part.origin) {
        parts.back().end = part.end;
      } else {
        parts.push_back(part);
      }
    }
    if (reached != range.end_bytes) error = "memory that was never written";
    offset += range.end_bytes - range.begin_bytes;
  }
  return parts;
}

}  // namespace sluice::schedule::symbolic
