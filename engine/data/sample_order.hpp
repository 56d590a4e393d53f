// The order of training samples: a seeded permutation per epoch, computed point by point.
//
// A balanced Feistel network over the least even number of bits that holds `count`, walked until
// the value falls inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002). No state, O(1) memory: a resumed run needs nothing but its step number.
#pragma once

#include <cstdint>

namespace sluice::data {

class SampleOrder {
 public:
  // count > 0, below 2^62.
  SampleOrder(std::uint64_t seed, std::uint64_t count);

  // The window of the index-th sample of the run: index / count is the epoch, and every epoch
  // visits every window once, in an order of its own. In [0, count).
  std::uint64_t window_of(std::uint64_t index) const;

 private:
  std::uint64_t permute(std::uint64_t epoch, std::uint64_t value) const;

  std::uint64_t seed_;
  std::uint64_t count_;
  unsigned half_bits_;
};

}  // namespace sluice::data
