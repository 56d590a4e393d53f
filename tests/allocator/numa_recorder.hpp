// A synthetic NUMA machine that notes bindings, and refuses them when told to.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/host_mapping.hpp"
#include "base/numa.hpp"

namespace sluice::allocator {

// data: at a page.
inline std::uint64_t resident_pages(void* data, std::uint64_t bytes) {
  std::vector<unsigned char> flags(bytes / kHostPageBytes);
  if (mincore(data, bytes, flags.data()) != 0) return 0;
  return static_cast<std::uint64_t>(
      std::count_if(flags.begin(), flags.end(), [](auto flag) { return (flag & 1) != 0; }));
}

class NumaRecorder final : public NumaMachine {
 public:
  struct BoundMemory {
    void* data = nullptr;
    std::uint64_t bytes = 0;
    std::size_t node = 0;
    std::uint64_t resident_pages = 0;  // when it was bound
  };

  explicit NumaRecorder(const std::string& description)
      : machine_(make_synthetic_numa_machine(description)) {}
  void refuse(int error_number) { error_number_ = error_number; }

  std::vector<BoundMemory> bound_memory() const { return memory_; }
  std::vector<std::pair<std::thread::id, std::size_t>> bound_threads() const { return threads_; }

  std::span<const NumaNode> nodes() const override { return machine_->nodes(); }
  int bind_memory(void* data, std::uint64_t bytes, std::size_t node) const noexcept override {
    const std::lock_guard lock(mutex_);
    memory_.push_back({data, bytes, node, resident_pages(data, bytes)});
    return error_number_;
  }
  int bind_this_thread(std::size_t node) const noexcept override {
    const std::lock_guard lock(mutex_);
    threads_.emplace_back(std::this_thread::get_id(), node);
    return error_number_;
  }
  int find_pages(std::span<const void* const> addresses,
                 std::span<int> found) const noexcept override {
    return machine_->find_pages(addresses, found);
  }

 private:
  const std::unique_ptr<NumaMachine> machine_;
  int error_number_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<BoundMemory> memory_;
  mutable std::vector<std::pair<std::thread::id, std::size_t>> threads_;
};

}  // namespace sluice::allocator
