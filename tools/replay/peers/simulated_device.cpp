#include "tools/replay/peers/simulated_device.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;  // of cudaMalloc at these sizes
constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 36;
// Our addresses begin this far above a record's last one, so that the addresses of segments that
// the record obtains later stay free.
constexpr std::uint64_t kSlack = std::uint64_t{1} << 40;
// No device has an address above this. If the record has one, our addresses start at kFirstAddress
// and may lie among the record's; reserve_addresses avoids collisions.
constexpr std::uint64_t kHighestPlausible = std::uint64_t{1} << 56;

std::uint64_t first_address(const record::MemoryTrace& trace) {
  std::uint64_t highest = 0;
  for (const record::TraceAllocation& one : trace.allocations) {
    highest = std::max({highest, one.address, one.segment_address});
  }
  for (const record::SnapshotSegment& segment : trace.initial_segments) {
    highest = std::max(highest, segment.address);
  }
  if (highest == 0 || highest > kHighestPlausible) return kFirstAddress;
  return (highest + kSlack) / kAlignment * kAlignment;
}

}  // namespace

SimulatedDevice::SimulatedDevice(const record::MemoryTrace& trace, std::uint64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), next_address_(first_address(trace)) {}

std::uint64_t SimulatedDevice::room_bytes() const {
  const std::uint64_t limit = std::min(capacity_bytes_, kExbibyte);
  return limit - std::min(limit, counters.reserved_bytes);
}

bool SimulatedDevice::try_obtain(std::uint64_t bytes, std::uint64_t handles) {
  if (bytes > room_bytes()) return false;
  adopt(bytes);
  counters.driver_allocations += handles;
  return true;
}

void SimulatedDevice::adopt(std::uint64_t bytes) {
  counters.reserved_bytes += bytes;
  counters.peak_reserved_bytes = std::max(counters.peak_reserved_bytes, counters.reserved_bytes);
}

void SimulatedDevice::give_back(std::uint64_t bytes) {
  SLUICE_CHECK(bytes <= counters.reserved_bytes);
  counters.reserved_bytes -= bytes;
}

std::uint64_t SimulatedDevice::overlap_end(std::uint64_t address, std::uint64_t bytes) const {
  const auto after = ranges_.lower_bound(address);
  if (after != ranges_.end() && after->first - address < bytes) return after->second;
  if (after == ranges_.begin()) return 0;
  const auto before = std::prev(after);
  return before->second > address ? before->second : 0;
}

std::optional<std::uint64_t> SimulatedDevice::find_gap(std::uint64_t address,
                                                       std::uint64_t bytes) const {
  const auto fits = [&] { return address <= UINT64_MAX - kAlignment - bytes; };
  while (fits()) {
    const std::uint64_t end = overlap_end(address, bytes);
    if (end == 0) return address;
    if (end > UINT64_MAX - kAlignment) return std::nullopt;
    address = round_up(end, kAlignment);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> SimulatedDevice::reserve_addresses(std::uint64_t bytes,
                                                                std::uint64_t wanted) {
  if (wanted != 0 && wanted <= UINT64_MAX - bytes && overlap_end(wanted, bytes) == 0) {
    reserve_at(wanted, bytes);
    return wanted;
  }
  std::optional<std::uint64_t> address = find_gap(next_address_, bytes);
  if (!address) address = find_gap(kFirstAddress, bytes);
  if (!address) return std::nullopt;
  next_address_ = round_up(*address + bytes, kAlignment);
  reserve_at(*address, bytes);
  return address;
}

void SimulatedDevice::reserve_at(std::uint64_t address, std::uint64_t bytes) {
  SLUICE_CHECK(overlap_end(address, bytes) == 0);
  ranges_.emplace(address, address + bytes);
}

void SimulatedDevice::release_addresses(std::uint64_t address) {
  SLUICE_CHECK(ranges_.erase(address) == 1);
}

}  // namespace sluice::replay
