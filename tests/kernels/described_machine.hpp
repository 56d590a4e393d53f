// A machine that a test describes: its nodes, the node of each page, and the node that each thread
// was bound to last. A binding is noted instead of made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/numa.hpp"

namespace sluice::kernels {

// Says that the page of the address i lies on node pages[i].
class DescribedMachine final : public NumaMachine {
 public:
  explicit DescribedMachine(const std::string& description)
      : machine_(make_synthetic_numa_machine(description)) {}

  int bind_error = 0, find_error = 0;
  std::vector<int> pages;

  int node_of_this_thread() const {
    const std::lock_guard lock(mutex_);
    const auto found = bound_.find(std::this_thread::get_id());
    return found == bound_.end() ? -1 : static_cast<int>(found->second);
  }

  std::span<const NumaNode> nodes() const override { return machine_->nodes(); }
  int bind_memory(void*, std::uint64_t, std::size_t) const noexcept override { return 0; }
  int bind_this_thread(std::size_t node) const noexcept override {
    const std::lock_guard lock(mutex_);
    bound_[std::this_thread::get_id()] = node;
    return bind_error;
  }
  int find_pages(std::span<const void* const> addresses,
                 std::span<int> found) const noexcept override {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      found[i] = i < pages.size() ? pages[i] : -1;
    }
    return find_error;
  }

 private:
  const std::unique_ptr<NumaMachine> machine_;
  mutable std::mutex mutex_;
  mutable std::map<std::thread::id, std::size_t> bound_;
};

}  // namespace sluice::kernels
