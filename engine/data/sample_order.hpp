// The order of training samples: a seeded permutation per epoch, computed point by point.
//
// It is a balanced Feistel network over the least even number of bits that holds `count`. The
// network is applied again until the value is below `count` (cycle walking; Black and Rogaway,
// "Ciphers with arbitrary finite domains", CT-RSA 2002). There is no state: a resumed run needs
// only its step number.
#pragma once

#include <cstdint>

namespace sluice::data {

class SampleOrder {
 public:
  // count > 0, below 2^62.
  SampleOrder(std::uint64_t seed, std::uint64_t count);

  // The window of the index-th sample of the run, in [0, count). index / count is the epoch; every
  // epoch visits every window once, in its own order.
  std::uint64_t window_of(std::uint64_t index) const;

 private:
  std::uint64_t permute(std::uint64_t epoch, std::uint64_t value) const;

  std::uint64_t seed_;
  std::uint64_t count_;
  unsigned half_bits_;
};

}  // namespace sluice::data
