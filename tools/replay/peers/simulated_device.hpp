// The device under a replica: physical memory that is only counted, and addresses that nothing
// stands behind. The two are apart, as in the driver's virtual memory.
#pragma once

#include <cstdint>
#include <map>

#include "allocator/record/memory_trace.hpp"
#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// PyTorch refuses requests from here on, and no simulated device holds more.
inline constexpr std::uint64_t kExbibyte = std::uint64_t{1} << 60;

class SimulatedDevice {
 public:
  SimulatedDevice(const record::MemoryTrace& trace, std::uint64_t capacity_bytes);

  // Physical memory in `handles` allocations of the driver; false, and nothing obtained, where
  // the capacity would be passed.
  bool try_obtain(std::uint64_t bytes, std::uint64_t handles = 1);
  // What was held before the trace began, past the capacity or not; no allocation of the driver.
  void adopt(std::uint64_t bytes);
  void give_back(std::uint64_t bytes);
  // What may still be obtained.
  std::uint64_t room_bytes() const;
  std::uint64_t capacity_bytes() const { return capacity_bytes_; }

  // A free range of addresses: at `wanted`, where that is not 0 and free, else above all that was
  // given before, aligned to 2 MiB. Addresses decide nothing but ties between equal sizes; handed
  // out upward, the older segment wins, as it does after a fresh start under the driver.
  std::uint64_t reserve_addresses(std::uint64_t bytes, std::uint64_t wanted = 0);
  void release_addresses(std::uint64_t address);

  PolicyCounters counters;

 private:
  // The end of a reserved range that overlaps [address, address + bytes), or 0.
  std::uint64_t overlap_end(std::uint64_t address, std::uint64_t bytes) const;

  std::uint64_t capacity_bytes_;
  std::uint64_t next_address_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // reserved: begin, end
};

}  // namespace sluice::replay
