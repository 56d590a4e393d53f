// The interpreter's memory: terms by address (private to interpret). An interval map of its own: it
// shares no code with those of link and validate, so that one mistake cannot hide in all three.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "engine/schedule/check/interpret.hpp"

namespace sluice::schedule::symbolic {

// A hash of 64-bit words, in order; two independently keyed lanes.
Term hash_words(std::initializer_list<std::uint64_t> words);
class TermHash {
 public:
  void add(std::uint64_t word);
  void add(const Term& term) {
    add(term.low);
    add(term.high);
  }
  Term value() const { return state_; }

 private:
  Term state_{0x243f6a8885a308d3ull, 0x13198a2e03707344ull};
};

// Bytes [begin, end) of a buffer that hold a part of a value. The part begins at byte `origin` of
// the value's own extent: of the unit's elements in the buffer's dtype for state, else the buffer.
struct Part {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Term term;
  std::uint64_t origin = 0;
};

// All memory of one rank.
class SymbolicMemory {
 public:
  explicit SymbolicMemory(const Schedule& schedule) : schedule_(schedule) {}

  // Parts of [begin, end) of the buffer (offsets as in the buffer), neighbours merged. Sets `error`
  // if the memory holds anything but the buffer's own writes.
  std::vector<Part> read(const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                         std::string& error) const;
  // part.begin and part.end are offsets in the buffer.
  void write(const Buffer& buffer, const Part& part);
  // Marks the buffer's bytes as freed: a read before the next write is an error.
  void poison(const Buffer& buffer);

 private:
  struct Cell {
    std::uint64_t end = 0;
    Term term;
    std::uint64_t origin = 0;
    BufferId owner = kNoId;
    bool freed = false;
  };
  using Space = std::map<std::uint64_t, Cell>;  // by begin; holes were never written
  static void put(Space& space, std::uint64_t begin, const Cell& cell);
  void store(const Buffer& buffer, const Part& part, bool freed);

  const Schedule& schedule_;
  std::array<Space, kMemoryCount> spaces_;
};

}  // namespace sluice::schedule::symbolic
