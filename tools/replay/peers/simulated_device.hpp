// The device under a replica. Physical memory is only counted, and addresses have no memory behind
// them. The two are separate, as in the driver's virtual memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "allocator/record/memory_trace.hpp"
#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// PyTorch refuses requests of this size or more, and no simulated device holds more.
inline constexpr std::uint64_t kExbibyte = std::uint64_t{1} << 60;

class SimulatedDevice {
 public:
  SimulatedDevice(const record::MemoryTrace& trace, std::uint64_t capacity_bytes);

  // Obtains physical memory in `handles` allocations of the driver. Returns false, and obtains
  // nothing, if the capacity would be exceeded.
  bool try_obtain(std::uint64_t bytes, std::uint64_t handles = 1);
  // Counts memory that was held before the trace began, even beyond the capacity. It is not an
  // allocation of the driver.
  void adopt(std::uint64_t bytes);
  void give_back(std::uint64_t bytes);
  // The memory that may still be obtained.
  std::uint64_t room_bytes() const;
  std::uint64_t capacity_bytes() const { return capacity_bytes_; }

  // Reserves a range of addresses: at `wanted` if that is not 0 and free, else above all earlier
  // ranges, aligned to 2 MiB. Addresses only decide ties between equal sizes. As they go up, the
  // older segment wins, as it does after a fresh start under the driver. At the end of the 64-bit
  // addresses they begin again from below; none are left if there is no gap either.
  std::optional<std::uint64_t> reserve_addresses(std::uint64_t bytes, std::uint64_t wanted = 0);
  // Reserves this range. Precondition: all of it is free.
  void reserve_at(std::uint64_t address, std::uint64_t bytes);
  void release_addresses(std::uint64_t address);

  PolicyCounters counters;

 private:
  // The end of a reserved range that overlaps [address, address + bytes), or 0.
  std::uint64_t overlap_end(std::uint64_t address, std::uint64_t bytes) const;
  // The first free range at or above `address`, aligned to 2 MiB.
  std::optional<std::uint64_t> find_gap(std::uint64_t address, std::uint64_t bytes) const;

  std::uint64_t capacity_bytes_;
  std::uint64_t next_address_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin and end of reserved ranges
};

}  // namespace sluice::replay
