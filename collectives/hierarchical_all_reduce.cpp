// Each rank of a node owns a slice of the data. It sums its slice over the node's ranks, sums the
// result's parts over the nodes, and gathers twice on the way back.
//
//     workspace   | the slice's sum over the node | workspace of the reduction at hand |
#include "collectives/hierarchical_all_reduce.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "collectives/fold.hpp"

namespace sluice::collectives {
namespace {

// As even as possible, the first ones larger.
std::vector<std::uint64_t> divide(std::uint64_t count, int ranks) {
  const auto parts = static_cast<std::uint64_t>(ranks);
  std::vector<std::uint64_t> counts(parts, count / parts);
  for (std::uint64_t part = 0; part < count % parts; ++part) ++counts[part];
  return counts;
}

std::uint64_t begin_of(const std::vector<std::uint64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
}

struct Division {
  std::vector<std::uint64_t> slices;  // over the ranks of the node
  std::uint64_t own = 0;              // elements of this rank's slice
  std::vector<std::uint64_t> parts;   // of this rank's slice over the nodes
  std::uint64_t sum_bytes = 0;        // of this rank's slice as partial sums

  Division(const NodeGroups& groups, std::uint64_t count, DType dtype)
      : slices(divide(count, groups.node.size())),
        own(slices[static_cast<std::size_t>(groups.node.rank())]),
        parts(divide(own, groups.across.size())),
        sum_bytes(round_up(bytes_of(sum_dtype(dtype), own), kTensorAlignmentBytes)) {}
};

}  // namespace

std::uint64_t hierarchical_all_reduce_workspace_bytes(const NodeGroups& groups, std::uint64_t count,
                                                      DType dtype) {
  if (groups.node.size() == 1) return groups.across.all_reduce_workspace_bytes(count, dtype);
  if (groups.across.size() == 1) return groups.node.all_reduce_workspace_bytes(count, dtype);
  const Division division(groups, count, dtype);
  return division.sum_bytes +
         std::max(groups.node.reduce_scatter_workspace_bytes(division.slices, dtype),
                  groups.across.reduce_scatter_workspace_bytes(division.parts, sum_dtype(dtype)));
}

void hierarchical_all_reduce(const NodeGroups& groups, void* data, std::uint64_t count, DType dtype,
                             void* workspace) {
  const auto node_ranks = static_cast<unsigned>(groups.node.size());
  if (groups.across.size() > 1 && !std::has_single_bit(node_ranks)) {
    throw InputError("a hierarchical reduction over nodes of " + std::to_string(node_ranks) +
                     " ranks would change the results; run 2, 4, 8, ... ranks on each node");
  }
  if (node_ranks == 1) return groups.across.all_reduce(data, count, dtype, workspace);
  if (groups.across.size() == 1) return groups.node.all_reduce(data, count, dtype, workspace);
  const Division division(groups, count, dtype);
  const DType sums = sum_dtype(dtype);
  void* const partial = workspace;
  void* const scratch = static_cast<std::byte*>(workspace) + division.sum_bytes;
  std::byte* const slice = static_cast<std::byte*>(data) +
                           bytes_of(dtype, begin_of(division.slices, groups.node.rank()));
  std::byte* const part = slice + bytes_of(dtype, begin_of(division.parts, groups.across.rank()));
  groups.node.reduce_scatter(data, partial, division.slices, {dtype, sums}, scratch);
  groups.across.reduce_scatter(partial, part, division.parts, {sums, dtype}, scratch);
  groups.across.all_gather(part, slice, division.parts, dtype);
  groups.node.all_gather(slice, data, division.slices, dtype);
}

}  // namespace sluice::collectives
