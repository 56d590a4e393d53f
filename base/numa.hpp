// The NUMA nodes of this host, binding to them (hwloc over mbind(2) and sched_setaffinity(2)), and
// where pages lie (move_pages(2)).
//
// A processing unit belongs to one node here: the first that hwloc lists as local to it, which is
// the ordinary memory of its socket. Nodes that are left without any hold memory only: HBM beside
// DRAM, CXL expanders, the memory of a GPU on a coherent link. A machine without NUMA has one node.
// Thread-safe once made: nothing changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct NumaNode {
  int os_index = 0;  // what numactl(8) and sysfs call it
  std::uint64_t memory_bytes = 0;
  bool memory_only = false;  // no processing unit of the machine is its own
  std::vector<int> cpus;     // its processing units that this process may use (OS indices)
};

// Virtual so that a test can refuse what a container may refuse.
class NumaMachine {
 public:
  virtual ~NumaMachine() = default;
  // At least one, in hwloc's order.
  virtual std::span<const NumaNode> nodes() const = 0;

  // Pages of [data, data + bytes) that are not there yet will come from nodes()[node], or from
  // another where that one is full: a preference (MPOL_PREFERRED), because strict binding
  // (MPOL_BIND) has the process killed for lack of memory while other nodes have some. data is
  // page-aligned. Returns 0, or the errno of the refusal (EPERM under Docker's default seccomp
  // filter).
  virtual int bind_memory(void* data, std::uint64_t bytes, std::size_t node) const noexcept = 0;
  // The calling thread runs only on nodes()[node].cpus. Returns 0 or an errno; EINVAL where the
  // node has none.
  virtual int bind_this_thread(std::size_t node) const noexcept = 0;
  // found[i]: position in nodes() of the node that the page of addresses[i] lies on; -1: none holds
  // it yet, or one that is not in the list. Both spans have one length. Returns 0 or an errno
  // (EPERM where a container forbids the question), found then being garbage.
  virtual int find_pages(std::span<const void* const> addresses,
                         std::span<int> found) const noexcept = 0;
};

// Whether Linux shows more than one node online: what a machine with one need not read hwloc for.
bool has_several_numa_nodes();

std::unique_ptr<NumaMachine> read_numa_machine();

// A machine from hwloc's description ("node:2 core:4 pu:1"), on which binding does nothing and
// succeeds, and no page is found. Throws InputError where hwloc does not understand it.
std::unique_ptr<NumaMachine> make_synthetic_numa_machine(const std::string& description);

}  // namespace sluice
