// The NUMA nodes of this host: their sizes, binding to them (hwloc over mbind(2) and
// sched_setaffinity(2)), and the node of a page (move_pages(2)).
//
// Here a processing unit belongs to one node: the first that hwloc lists as local to it, the
// ordinary memory of its socket. A node left without processing units is memory-only: HBM next to
// DRAM, CXL expanders, the memory of a GPU on a coherent link. A machine without NUMA has one node.
// Thread-safe: objects do not change after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct NumaNode {
  int os_index = 0;  // the number in numactl(8) and sysfs
  std::uint64_t memory_bytes = 0;
  bool memory_only = false;  // no processing unit of the machine belongs to it
  std::vector<int> cpus;     // its processing units that this process may use (OS indices)
};

// Virtual, so that a test can refuse calls as a container may.
class NumaMachine {
 public:
  virtual ~NumaMachine() = default;
  // At least one, in hwloc's order.
  virtual std::span<const NumaNode> nodes() const = 0;

  // Makes pages of [data, data + bytes) that do not exist yet come from nodes()[node], or
  // from another node if that one is full. It is a preference (MPOL_PREFERRED): with strict
  // binding (MPOL_BIND) the kernel kills the process for lack of memory while other nodes
  // have some. data is page-aligned. Returns 0, or the errno of the refusal (EPERM under
  // Docker's default seccomp filter).
  virtual int bind_memory(void* data, std::uint64_t bytes, std::size_t node) const noexcept = 0;
  // Restricts the calling thread to nodes()[node].cpus. Returns 0 or an errno; EINVAL if the
  // node has none.
  virtual int bind_this_thread(std::size_t node) const noexcept = 0;
  // Sets found[i] to the position in nodes() of the node that holds the page of addresses[i], or to
  // -1 if the page does not exist yet or its node is not in the list. Both spans have one length.
  // Returns 0, or an errno (EPERM if a container forbids the call) with unspecified `found`.
  virtual int find_pages(std::span<const void* const> addresses,
                         std::span<int> found) const noexcept = 0;
};

// Whether Linux shows more than one node online. A machine with one node need not load hwloc.
bool has_several_numa_nodes();

std::unique_ptr<NumaMachine> read_numa_machine();

// A machine from hwloc's description ("node:2 core:4 pu:1"). Binding on it succeeds and does
// nothing, and no page is found. Throws InputError if hwloc cannot parse the description.
std::unique_ptr<NumaMachine> make_synthetic_numa_machine(const std::string& description);

}  // namespace sluice
