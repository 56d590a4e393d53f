// The memory of the counting device, which the runtime (counting_cuda.cpp) and the driver
// (counting_driver.cpp) share. Memory is a range of addresses that is reserved and never
// accessible: a stray access faults. Thread-safe.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace counting {

constexpr std::uint64_t kPage = 2ULL << 20;
constexpr std::uint64_t kSpace = 4ULL << 40;  // of addresses

class CountingMemory {
 public:
  CountingMemory() {
    if (const char* bytes = std::getenv("COUNTING_BYTES"))
      capacity_ = std::strtoull(bytes, nullptr, 10);
    const char* place = std::getenv("COUNTING_PLACE");
    descending_ = place != nullptr && std::strcmp(place, "descending") == 0;
    void* space =
        mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
      std::fprintf(stderr, "counting device: no %llu bytes of address space\n",
                   static_cast<unsigned long long>(kSpace));
      std::abort();
    }
    const auto first = reinterpret_cast<std::uint64_t>(space);
    begin_ = (first + kPage - 1) / kPage * kPage;
    end_ = (first + kSpace) / kPage * kPage;
  }

  bool holds(const void* address) const {
    const auto at = reinterpret_cast<std::uint64_t>(address);
    return at >= begin_ && at < end_;
  }

  // Addresses without memory; 0: none left.
  std::uint64_t reserve(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t size = (bytes + kPage - 1) / kPage * kPage;
    return descending_ ? place_highest(size) : place_lowest(size);
  }
  bool release(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    return ranges_.erase(address) == 1;
  }

  // Memory without addresses.
  bool charge(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > capacity_ - used_) return false;
    used_ += bytes;
    return true;
  }
  void discharge(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= std::min(bytes, used_);
  }

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t available() {
    const std::lock_guard lock(mutex_);
    return capacity_ - used_;
  }

 private:
  std::uint64_t place_lowest(std::uint64_t size) {
    std::uint64_t at = begin_;
    for (const auto& [begin, end] : ranges_) {
      if (begin - at >= size) break;
      at = end;
    }
    if (end_ - at < size) return 0;
    ranges_[at] = at + size;
    return at;
  }
  std::uint64_t place_highest(std::uint64_t size) {
    std::uint64_t top = end_;
    for (auto range = ranges_.rbegin(); range != ranges_.rend(); ++range) {
      if (top - range->second >= size) break;
      top = range->first;
    }
    if (top - begin_ < size) return 0;
    ranges_[top - size] = top;
    return top - size;
  }

  std::mutex mutex_;
  std::uint64_t begin_ = 0, end_ = 0;
  std::uint64_t capacity_ = 80ULL << 30;
  std::uint64_t used_ = 0;
  bool descending_ = false;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin to end
};

inline CountingMemory& memory() {
  static CountingMemory counted;
  return counted;
}

// Sizes of the memory that cudaMalloc and cuMemCreate gave out, by address or handle.
class Sizes {
 public:
  void insert(std::uint64_t key, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_[key] = bytes;
  }
  std::uint64_t take(std::uint64_t key) {  // 0: never returned
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(key);
    if (found == sizes_.end()) return 0;
    const std::uint64_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> sizes_;
};

inline Sizes allocations, handles;

// The direction that two pointers demand; the kind may say another.
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (memory().holds(to)) return;
  if (memory().holds(from)) {
    std::memset(to, 0, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// A name that no other has, for streams and events.
inline std::uintptr_t next_name() {
  static std::mutex mutex;
  static std::uintptr_t last = 0x1000;
  const std::lock_guard lock(mutex);
  return last += 64;
}

}  // namespace counting
