// Values drawn one after the other from a counter-based generator.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/rng.hpp"

namespace sluice::replay::generated {

class Draws {
 public:
  Draws(std::uint64_t seed, const char* purpose) : rng_(seed, stream_of(purpose)) {}
  std::uint64_t below(std::uint64_t bound) { return rng_.below(next_++, bound); }
  // In [low, high], both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  void skip(std::uint64_t count) { next_ += count; }
  double uniform() { return rng_.uniform(next_++); }
  double normal() { return rng_.normal(next_++); }
  bool chance(double probability) { return uniform() < probability; }
  std::uint64_t one_of(std::initializer_list<std::uint64_t> values) {
    return values.begin()[below(values.size())];
  }

 private:
  CounterRng rng_;
  std::uint64_t next_ = 0;
};

}  // namespace sluice::replay::generated
