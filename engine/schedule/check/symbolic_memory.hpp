// The interpreter's memory: terms by address (private to interpret).
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

// Bytes [begin, end) of a value: those that lie at byte `origin` and on in the value's own extent
// (for state: the unit's elements in the buffer's dtype; else the buffer).
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

  // Parts of [begin, end) of the buffer (offsets as in the buffer), neighbours merged. Where memory
  // is not what the buffer's own writes left, `error` says why.
  std::vector<Part> read(const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                         std::string& error) const;
  // part.begin and part.end are offsets in the buffer.
  void write(const Buffer& buffer, const Part& part);
  // Whoever reads these bytes before the next write reads freed memory.
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
