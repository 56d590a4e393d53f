// Where the pages of a new region come from, and the touch that brings them.
//
// Linux places a page when it is first touched. What node each byte is meant for and which thread
// touches it are pure functions of the machine and the size; first_touch() carries them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numa.hpp"
#include "base/units.hpp"

namespace sluice::allocator {

enum class NumaPlacement : std::uint8_t {
  kNearDevice,  // the node that the device hangs on; spread where it hangs on none that we may use
  kNode,        // a given node
  kSpread,      // over all nodes with processing units, in proportion to their memory
};

// [offset_bytes, offset_bytes + bytes) of the region is for nodes[node].
struct NodeShare {
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::size_t node = 0;  // position in the machine's list
};

// Contiguous, in order, none empty, together all of `bytes`; borders are multiples of
// kHugePageBytes. os_index: of the device's node (-1: none known) or of the given one. Only kNode
// chooses memory-only nodes: a spread would put pages into a GPU's own memory where that is a node.
// Throws InputError where kNode names a node that is not there.
std::vector<NodeShare> share_among_nodes(std::uint64_t bytes, std::span<const NumaNode> nodes,
                                         NumaPlacement placement, int os_index);

// One thread per piece.
using TouchPiece = NodeShare;

// A thread costs some tens of microseconds, clearing this much some milliseconds.
inline constexpr std::uint64_t kLeastTouchBytes = 32 * kMiB;
// About as many cores as fill one socket's memory bandwidth by clearing pages.
inline constexpr std::size_t kMaxTouchThreadsPerNode = 16;
inline constexpr std::size_t kMaxTouchThreads = 64;

// Cuts each share for as many threads as help: no more than its node has usable processing units
// (a node without any is touched from anywhere), than the two limits above, or than leave
// each kLeastTouchBytes. Borders as above, so that no two threads meet in one huge page.
std::vector<TouchPiece> cut_for_threads(std::span<const NodeShare> shares,
                                        std::span<const NumaNode> nodes);

// Binds each share to its node before a page of it exists, then touches all pages, in parallel; on
// a machine with one node there is nothing to bind. Where binding is refused it warns once, and the
// touching threads, bound to the nodes' processing units, place the pages. The threads are joined
// when it returns or throws; where one cannot be started, the calling thread does its piece.
// Throws DeviceError where the kernel reports that pages cannot be had.
void first_touch(std::byte* data, std::span<const NodeShare> shares, const NumaMachine& machine);

}  // namespace sluice::allocator
