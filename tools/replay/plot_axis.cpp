#include "tools/replay/plot_axis.hpp"

#include <algorithm>

namespace sluice::replay {
namespace {

std::vector<std::uint64_t> multiples(std::uint64_t step, std::uint64_t end) {
  std::vector<std::uint64_t> ticks;
  for (std::uint64_t i = 0; i <= end / step; ++i) ticks.push_back(i * step);
  return ticks;
}

}  // namespace

CompactAddresses::CompactAddresses(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges,
                                   std::uint64_t hole_bytes) {
  std::erase_if(ranges, [](const auto& range) { return range.second == 0; });
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> used;  // begin, end; disjoint
  std::uint64_t used_bytes = 0;
  for (const auto& [address, bytes] : ranges) {
    const std::uint64_t end = address + bytes;
    if (!used.empty() && address <= used.back().second) {
      if (end > used.back().second) used_bytes += end - used.back().second;
      used.back().second = std::max(used.back().second, end);
    } else {
      used.emplace_back(address, end);
      used_bytes += bytes;
    }
  }
  if (hole_bytes == 0) hole_bytes = std::max<std::uint64_t>(1, used_bytes / 8);
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (i > 0) {
      const std::uint64_t gap_bytes = used[i].first - used[i - 1].second;
      if (gap_bytes >= hole_bytes) {
        holes_.push_back({extent_bytes_ + hole_bytes / 8, gap_bytes});
        extent_bytes_ += hole_bytes / 4;
      } else {
        extent_bytes_ += gap_bytes;
      }
    }
    starts_.emplace_back(used[i].first, extent_bytes_);
    extent_bytes_ += used[i].second - used[i].first;
  }
}

std::uint64_t CompactAddresses::offset_of(std::uint64_t address) const {
  const auto after =
      std::upper_bound(starts_.begin(), starts_.end(), address,
                       [](std::uint64_t value, const auto& start) { return value < start.first; });
  if (after == starts_.begin()) return 0;
  return std::min((after - 1)->second + (address - (after - 1)->first), extent_bytes_);
}

std::vector<std::uint64_t> byte_ticks(std::uint64_t end, std::size_t count) {
  std::uint64_t step = 1;
  while (end / step > count) step *= 2;
  return multiples(step, end);
}

std::vector<std::uint64_t> decimal_ticks(std::uint64_t end, std::size_t count) {
  std::uint64_t power = 1;
  for (;;) {
    for (const std::uint64_t factor : {1, 2, 5}) {
      if (end / (factor * power) <= count) return multiples(factor * power, end);
    }
    power *= 10;
  }
}

}  // namespace sluice::replay
