// The NUMA placement of a new region, and the first touch that makes its pages exist.
//
// Linux places a page when it is first touched. The node of each byte and the thread that touches
// it are pure functions of the machine and the size; first_touch() carries them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numa.hpp"
#include "base/units.hpp"

namespace sluice::allocator {

enum class NumaPlacement : std::uint8_t {
  kNearDevice,  // the node nearest to the device; kSpread if there is none that we may use
  kNode,        // a given node
  kSpread,      // over all nodes with processing units, in proportion to their memory
};

// [offset_bytes, offset_bytes + bytes) of the region belongs on nodes[node].
struct NodeShare {
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::size_t node = 0;  // position in the machine's list
};

// Divides the region among nodes. The shares are contiguous, in order and not empty; together they
// are all of `bytes`, and borders are multiples of kHugePageBytes. os_index: the device's node (-1:
// not known), or the given one. Only kNode may choose a memory-only node; otherwise a spread could
// put pages into the memory of a GPU that is a node. Throws InputError if kNode names a node that
// does not exist.
std::vector<NodeShare> share_among_nodes(std::uint64_t bytes, std::span<const NumaNode> nodes,
                                         NumaPlacement placement, int os_index);

// One thread per piece.
using TouchPiece = NodeShare;

// The least bytes per thread: starting a thread takes tens of microseconds, clearing this much
// takes some milliseconds.
inline constexpr std::uint64_t kLeastTouchBytes = 32 * kMiB;
// About this many cores clear pages at the memory bandwidth of one socket.
inline constexpr std::size_t kMaxTouchThreadsPerNode = 16;
inline constexpr std::size_t kMaxTouchThreads = 64;

// Cuts each share into pieces, one per thread. Their number is limited by the node's usable
// processing units (a node without any is touched from anywhere), by the two limits above, and by
// kLeastTouchBytes per piece. Borders are as above, so that two threads never touch one huge page.
std::vector<TouchPiece> cut_for_threads(std::span<const NodeShare> shares,
                                        std::span<const NumaNode> nodes);

// Binds each share to its node before its pages exist, then touches all pages in parallel. A
// machine with one node needs no binding. If binding is refused, it logs one warning; the touching
// threads are bound to the nodes' processing units and place the pages. All threads are joined when
// it returns or throws. If a thread cannot be started, the calling thread does its piece. Throws
// DeviceError if the kernel has no pages.
void first_touch(std::byte* data, std::span<const NodeShare> shares, const NumaMachine& machine);

}  // namespace sluice::allocator
