#include "tools/replay/peers/torch_sizes.hpp"

#include <algorithm>
#include <bit>

namespace sluice::replay {

TorchRounding::TorchRounding(const record::MemoryTrace& trace) {
  divisions_.fill(trace.roundup_power2_divisions);
  const auto& table = trace.roundup_divisions_by_power;
  for (std::size_t i = 0; i < std::min(table.size(), kIntervals); ++i) divisions_[i] = table[i];
}

std::uint64_t TorchRounding::operator()(std::uint64_t bytes) const {
  if (bytes < kTorchMinBlock) return kTorchMinBlock;
  const int power = std::bit_width(bytes) - 1;
  const int interval = std::clamp(power - 20, 0, static_cast<int>(kIntervals) - 1);
  const std::uint64_t divisions = divisions_[static_cast<std::size_t>(interval)];
  if (divisions <= 1 || bytes <= kTorchMinBlock * divisions) {
    return round_up(bytes, kTorchMinBlock);
  }
  if (std::has_single_bit(bytes)) return bytes;
  const std::uint64_t step = (std::uint64_t{1} << power) >> (std::bit_width(divisions) - 1);
  return step == 0 ? std::uint64_t{2} << power : (bytes + step - 1) & ~(step - 1);
}

}  // namespace sluice::replay
