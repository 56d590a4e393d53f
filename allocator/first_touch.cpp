#include "allocator/first_touch.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "allocator/host_mapping.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice::allocator {
namespace {

constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

std::size_t find_node(std::span<const NumaNode> nodes, int os_index) {
  const auto at = std::find_if(nodes.begin(), nodes.end(),
                               [&](const NumaNode& node) { return node.os_index == os_index; });
  return at == nodes.end() ? kNoNode : static_cast<std::size_t>(at - nodes.begin());
}

[[noreturn]] void throw_no_such_node(std::span<const NumaNode> nodes, int os_index) {
  std::string list;
  for (const NumaNode& node : nodes) {
    list += (list.empty() ? "" : ", ") + std::to_string(node.os_index);
  }
  throw InputError("pinned memory on NUMA node " + std::to_string(os_index) +
                   ": this process may not use such a node; it may use " + list);
}

// Returns the weight of each node when pinned memory is spread over NUMA nodes: the node's memory,
// or 0 for a node without CPUs. If all sizes are unknown (a sandbox without sysfs), nodes with CPUs
// weigh the same.
std::vector<std::uint64_t> spread_weights(std::span<const NumaNode> nodes) {
  std::vector<std::uint64_t> weights;
  bool known = false;
  for (const NumaNode& node : nodes) {
    weights.push_back(node.memory_only ? 0 : node.memory_bytes);
    known |= weights.back() > 0;
  }
  for (std::size_t i = 0; !known && i < nodes.size(); ++i)
    weights[i] = nodes[i].memory_only ? 0 : 1;
  return weights;
}

std::vector<NodeShare> spread(std::uint64_t bytes, std::span<const NumaNode> nodes) {
  const std::vector<std::uint64_t> weights = spread_weights(nodes);
  unsigned __int128 total = 0;
  for (const std::uint64_t weight : weights) total += weight;
  SLUICE_CHECK(total > 0);
  std::vector<NodeShare> shares;
  unsigned __int128 up_to = 0;
  std::uint64_t begin = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    up_to += weights[node];
    // Rounds to the nearest huge page. Bytes and memory are below 2^57, the limit of x86-64.
    const auto exact = static_cast<std::uint64_t>(bytes * up_to / total);
    const std::uint64_t nearest = (exact + kHugePageBytes / 2) / kHugePageBytes * kHugePageBytes;
    const std::uint64_t end = up_to == total ? bytes : std::min(nearest, bytes);
    if (end > begin) shares.push_back({begin, end - begin, node});
    begin = end;
  }
  return shares;
}

// Makes every page exist. Since 5.14 the kernel does it in one call: with small pages in half the
// time of a fault per page, and it returns an error instead of killing the process. Returns 0 or an
// errno.
int touch(std::byte* data, std::uint64_t bytes) {
  if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  // An older kernel, or a sandbox, does not know the advice.
  if (errno != EINVAL && errno != ENOSYS && errno != EPERM) return errno;
  for (std::uint64_t offset = 0; offset < bytes; offset += kHostPageBytes) {
    *static_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
  return 0;
}

void bind_or_warn(std::byte* data, std::span<const NodeShare> shares, const NumaMachine& machine) {
  for (const NodeShare& share : shares) {
    const int error_number =
        machine.bind_memory(data + share.offset_bytes, share.bytes, share.node);
    if (error_number == 0) continue;
    log(LogLevel::kWarning,
        "pinned memory: binding to NUMA node " +
            std::to_string(machine.nodes()[share.node].os_index) + " is refused (" +
            std::strerror(error_number) +
            "; a container needs CAP_SYS_NICE): each page lies on the node of the thread that "
            "touches it");
    return;  // the same holds for all shares: one warning
  }
}

}  // namespace

std::vector<NodeShare> share_among_nodes(std::uint64_t bytes, std::span<const NumaNode> nodes,
                                         NumaPlacement placement, int os_index) {
  std::size_t node = kNoNode;
  if (placement != NumaPlacement::kSpread) node = find_node(nodes, os_index);
  if (placement == NumaPlacement::kNode && node == kNoNode) throw_no_such_node(nodes, os_index);
  if (bytes == 0) return {};
  if (placement == NumaPlacement::kNearDevice && node != kNoNode && nodes[node].memory_only) {
    node = kNoNode;
  }
  if (node != kNoNode) return {{0, bytes, node}};
  return spread(bytes, nodes);
}

std::vector<TouchPiece> cut_for_threads(std::span<const NodeShare> shares,
                                        std::span<const NumaNode> nodes) {
  std::size_t usable_cpus = 0;
  for (const NumaNode& node : nodes) usable_cpus += node.cpus.size();
  std::vector<TouchPiece> pieces;
  for (const NodeShare& share : shares) {
    const std::size_t own_cpus = nodes[share.node].cpus.size();
    const std::uint64_t most =
        std::min({own_cpus > 0 ? own_cpus : usable_cpus, kMaxTouchThreadsPerNode,
                  kMaxTouchThreads / shares.size()});
    const std::uint64_t threads =
        std::max<std::uint64_t>(1, std::min(most, share.bytes / kLeastTouchBytes));
    const std::uint64_t piece_bytes = round_up(ceil_div(share.bytes, threads), kHugePageBytes);
    for (std::uint64_t begin = 0; begin < share.bytes; begin += piece_bytes) {
      pieces.push_back(
          {share.offset_bytes + begin, std::min(piece_bytes, share.bytes - begin), share.node});
    }
  }
  return pieces;
}

void first_touch(std::byte* data, std::span<const NodeShare> shares, const NumaMachine& machine) {
  const bool several_nodes = machine.nodes().size() > 1;
  if (several_nodes) bind_or_warn(data, shares, machine);
  const std::vector<TouchPiece> pieces = cut_for_threads(shares, machine.nodes());
  std::vector<int> errors(pieces.size(), 0);  // errno of each piece
  const auto touch_piece = [&](std::size_t i) {
    errors[i] = touch(data + pieces[i].offset_bytes, pieces[i].bytes);
  };
  {
    std::vector<std::jthread> threads;  // joined at the end of this scope
    threads.reserve(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      // The caller takes no piece if there are several nodes, so its own affinity stays.
      if (!several_nodes && i + 1 == pieces.size()) {
        touch_piece(i);
        continue;
      }
      try {
        threads.push_back(start_thread("first touch", [&, i] {
          // Ignore a failure to bind the thread. The memory is already bound to its node, or
          // bind_or_warn() has logged a warning.
          if (several_nodes) static_cast<void>(machine.bind_this_thread(pieces[i].node));
          touch_piece(i);
        }));
      } catch (const ThreadError&) {  // the caller does the piece: slower, with the same result
        touch_piece(i);
      }
    }
  }
  const auto failed = std::find_if(errors.begin(), errors.end(), [](int error) { return error; });
  if (failed == errors.end()) return;
  throw DeviceError("pinned memory: first touch of " +
                    format_bytes(pieces[static_cast<std::size_t>(failed - errors.begin())].bytes) +
                    " failed: " + std::strerror(*failed));
}

}  // namespace sluice::allocator
