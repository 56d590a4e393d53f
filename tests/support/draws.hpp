// Numbers drawn from a seed, for property tests.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/rng.hpp"

namespace sluice::testing {

class Draws {
 public:
  Draws(std::uint64_t seed, const char* purpose) : random_(seed, stream_of(purpose)) {}
  std::uint64_t below(std::uint64_t bound) { return random_.below(index_++, bound); }
  bool chance(std::uint64_t in) { return below(in) == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  CounterRng random_;
  std::uint64_t index_ = 0;
};

}  // namespace sluice::testing
