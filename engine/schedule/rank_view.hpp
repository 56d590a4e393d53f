// The part of a step that one data-parallel rank does: plain data.
//
// Every rank computes whole units, so its windows hold whole units. Between steps it keeps only
// ranges of them, its *shards*, as far as the ZeRO stage says (Rajbhandari et al., "ZeRO: memory
// optimizations toward training trillion parameter models", SC 2020):
//
//   stage   weight   gradient   master and moments
//     0     whole    whole      whole
//     1, 2  whole    shard      shard
//     3     shard    shard      shard
//
// With a server, rank 0's shard is all of each unit and all others' are empty: it sums the
// gradients, keeps the optimizer's state, updates, and sends the weights (Li et al., "Scaling
// distributed machine learning with the parameter server", OSDI 2014, as a bulk-synchronous step).
// It also computes its share of the passes.
//
// Two other servers make several updates in one schedule. One applies each gradient as it arrives,
// so that a worker waits for nobody and its weights lack the newest updates (the asynchronous
// server of Dean et al., "Large scale distributed deep networks", NIPS 2012). The other is each
// rank in turn: the optimizer's state moves on to the next one after each update.
//
// A gradient is always summed in shards: each rank receives all parts of its own range and adds
// them in global micro-batch order, so the bits are those of one rank.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// The ranks that compute each micro-batch together (docs/design/tensor.md): `contexts` groups, each
// with a part of every sequence, of ranks that hold parts of the same units. Their units have equal
// element spaces, so that their lists differ in nothing but the names of ranks.
struct TensorView {
  std::int32_t rank = 0;  // those of a part of the sequences follow each other
  std::int32_t ranks = 1;
  std::int32_t contexts = 1;
  // So many neighbours hold copies of the same key/value heads; divides `ranks`. 1: none do.
  std::int32_t sharers = 1;
  std::int32_t parts() const { return ranks / contexts; }  // of each unit
  std::int32_t part() const { return rank % parts(); }
  std::int32_t context() const { return rank / parts(); }
  bool is_alone() const { return ranks == 1; }
  bool operator==(const TensorView&) const = default;
};

struct RankView {
  std::int32_t rank = 0;  // among the data-parallel ranks
  std::int32_t ranks = 1;
  std::int32_t zero_stage = 0;
  bool has_server = false;  // only in stage 0
  // The server applies each micro-batch's gradient by itself: by update, the rank that it comes
  // from. Empty: an update has micro-batches of all ranks.
  std::vector<std::int32_t> arrivals;
  bool rotates = false;  // the server of update u is rank u mod ranks; `shards` are those of rank 0
  // By unit (the tied use's gradient last) and rank: disjoint, ascending ranges that cover the
  // unit. A shard may be empty. Unused with one rank.
  std::vector<std::vector<ElemRange>> shards;
  // Rules that need whole tensors: the sums of the tensors in each shard, by unit and rank, in the
  // numbering of per_tensor state. Empty for other rules.
  std::vector<std::vector<ElemRange>> sums;
  TensorView tensor;

  bool is_alone() const { return ranks == 1; }
  bool is_asynchronous() const { return !arrivals.empty(); }
  std::int32_t server_of(std::int32_t update) const { return rotates ? update % ranks : 0; }
  // The rank whose gradient arrives for an update.
  std::int32_t arrival_of(std::int32_t update) const {
    return arrivals[static_cast<std::size_t>(update)];
  }
  bool shards_weights() const { return ranks > 1 && zero_stage == 3; }
  bool shards_optimizer() const { return ranks > 1 && (zero_stage > 0 || has_server); }
  bool operator==(const RankView&) const = default;
};

// Whether a reduction of `groups` sums has the bits of one rank on `ranks` ranks: each then holds a
// whole subtree of the balanced tree.
constexpr bool can_fold(std::int64_t groups, std::int64_t ranks) {
  if (groups == 1 || ranks == 1) return true;
  return groups % ranks == 0 && std::has_single_bit(static_cast<std::uint64_t>(groups / ranks));
}

}  // namespace sluice::schedule
