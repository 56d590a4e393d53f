// Reserves are the same on this machine and on a described one: a part of the host's memory for the
// system and its page cache, and some device memory for libraries that load code at their first
// call and for a desktop. Sizes are rounded down to round numbers, since people read them.
#include "engine/planner/default_budgets.hpp"

#include <algorithm>
#include <array>

namespace sluice::planner {
namespace {

using Origin = config::Config::BudgetOrigin;

// Reserve of a whole device: the driver's context, code of libraries, a desktop.
constexpr std::uint64_t kDeviceReserveBytes = 3 * kGiB / 2;
// Reserve of the free memory of a device here, where the driver's part is taken already.
constexpr std::uint64_t kFreeDeviceReserveBytes = kGiB;
// One part in this many stays free on the host, on drives, and at most on a device.
constexpr std::uint64_t kReservePart = 8;
constexpr std::uint64_t kDescribedStepBytes = kGiB / 2;
constexpr std::uint64_t kHereStepBytes = 16 * kMiB;
// For a profile that does not state the tier's size.
constexpr std::uint64_t kAssumedDeviceBytes = kGiB;
constexpr std::uint64_t kAssumedPinnedBytes = 2 * kGiB;

std::uint64_t round_down(std::uint64_t bytes, std::uint64_t step) {
  return bytes / step * step;
}

std::uint64_t without_reserve(std::uint64_t bytes) {
  return bytes - bytes / kReservePart;
}

// The field of a tier's budget and the place of its origin.
struct Budget {
  std::uint64_t& bytes;
  Origin& origin;

  bool open() const { return bytes == config::Config::kAutoBytes; }
  void settle(std::uint64_t found, Origin from) {
    if (!open()) return;
    bytes = found;
    origin = from;
  }
};

std::array<Budget, kTierCount> budgets_of(config::Config& config) {
  auto& memory = config.memory;
  auto& origins = memory.budget_origins;
  return {Budget{memory.device_bytes, origins[0]}, Budget{memory.pinned_bytes, origins[1]},
          Budget{memory.storage_bytes, origins[2]}};
}

}  // namespace

void settle_auto_budgets(config::Config& config, const RankRoom& room) {
  auto [device, pinned, storage] = budgets_of(config);
  std::uint64_t host_bytes = without_reserve(room.memory_bytes);
  if (room.device_bytes) {
    const std::uint64_t reserve_bytes =
        std::min(kFreeDeviceReserveBytes, *room.device_bytes / kReservePart);
    device.settle(round_down(*room.device_bytes - reserve_bytes, kHereStepBytes), Origin::kMachine);
  } else {
    const auto left = [&](const Budget& other) {
      return round_down(
          other.open() ? host_bytes / 2 : host_bytes - std::min(host_bytes, other.bytes),
          kHereStepBytes);
    };
    device.settle(left(pinned), Origin::kMachine);
    host_bytes -= std::min(host_bytes, device.bytes);
  }
  pinned.settle(round_down(host_bytes, kHereStepBytes), Origin::kMachine);
  storage.settle(std::min(room.storage_bytes, kMostAutoStorageBytes), Origin::kMachine);
}

void settle_auto_budgets(config::Config& config, const HardwareProfile& hardware) {
  auto [device, pinned, storage] = budgets_of(config);
  const auto ranks = static_cast<std::uint64_t>(
      std::max(hardware.rank_links ? hardware.rank_links->node_ranks : 0, 1));
  const auto stated = [&](Budget& budget, std::uint64_t bytes) {
    if (bytes > 0) budget.settle(round_down(bytes, kDescribedStepBytes), Origin::kProfile);
  };
  if (hardware.gpu && hardware.gpu->memory_bytes > kDeviceReserveBytes) {
    stated(device, hardware.gpu->memory_bytes - kDeviceReserveBytes);
  }
  // Without a GPU the device is host memory too, so no share of it is known.
  if (hardware.gpu) stated(pinned, without_reserve(hardware.memory_bytes) / ranks);
  stated(storage, without_reserve(hardware.storage_bytes) / ranks);
  device.settle(kAssumedDeviceBytes, Origin::kAssumed);
  pinned.settle(kAssumedPinnedBytes, Origin::kAssumed);
  storage.settle(kMostAutoStorageBytes, Origin::kAssumed);
}

}  // namespace sluice::planner
