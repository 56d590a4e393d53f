// Pinned host memory: one stable region of exact size (rounded to 4 KiB), registered once with the
// device and once with the storage engine. Huge pages by madvise; locked where RLIMIT_MEMLOCK
// allows, else left unlocked with one warning.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/ledger.hpp"
#include "device/device.hpp"

namespace sluice {

class PinnedArena {
 public:
  // Charges the ledger (tier pinned, `category`), maps, touches every page, registers with
  // `device`. bytes may be 0: data() is then null. Throws OutOfMemory, DeviceError.
  PinnedArena(Device& device, Ledger& ledger, std::uint64_t bytes, Category category);
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;
  // offset_bytes <= bytes(): the end has an address too.
  std::byte* at(std::uint64_t offset_bytes) const;
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }  // what is charged: whole 4 KiB pages
  bool locked() const { return locked_; }

 private:
  Reservation charge_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool locked_ = false;
  HostRegistration registration_;
};

}  // namespace sluice
