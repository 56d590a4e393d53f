// A unit's pass as segments with cuts between them: plain data.
//
// A segment is a part of a pass that needs nothing of other ranks. After it values may cross to
// the ranks of a tensor group, which hold parts of the same unit: each *cut*, a synchronisation
// point, declares one such value. A rank without others runs all segments of a pass as one
// instruction. Among several each segment is an instruction, and each cut a collective on the lane
// `inner`, so that the planner, the simulator and the checks see it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/dtype.hpp"
#include "engine/schedule/saved_part.hpp"

namespace sluice::schedule {

// The operation on the ranks' values at a cut, in place. kSum and kMax make one of them,
// elementwise, which every rank gets with the same bits. kScatter makes the sum, too, but each rank
// gets its own even part of it; kGather gives every rank the parts of all. kExchange sends each
// part to the rank of its number, and puts what comes from that rank into its place. kRing sends
// all of it to the next rank of the group, and puts that of the previous one into its place.
enum class CutKind : std::uint8_t { kSum, kMax, kScatter, kGather, kExchange, kRing };

// Whether parts go to their owner, who adds them, and whether the owner's part goes to all others.
constexpr bool adds(CutKind kind) {
  return kind == CutKind::kSum || kind == CutKind::kMax || kind == CutKind::kScatter;
}
constexpr bool spreads(CutKind kind) {
  return kind == CutKind::kSum || kind == CutKind::kMax || kind == CutKind::kGather;
}
// The bytes of the workspace that a rank receives others' values in. own: those of its part.
constexpr std::uint64_t inner_workspace_bytes(CutKind kind, std::uint64_t bytes, std::uint64_t own,
                                              std::uint64_t ranks) {
  if (kind == CutKind::kRing) return bytes;
  return adds(kind) || kind == CutKind::kExchange ? (ranks - 1) * own : 0;
}
// The bytes that a rank sends of a value of `bytes` bytes, of which `own` are its part.
constexpr std::uint64_t inner_bytes(CutKind kind, std::uint64_t bytes, std::uint64_t own,
                                    std::uint64_t ranks) {
  if (kind == CutKind::kRing) return bytes;
  return (adds(kind) || kind == CutKind::kExchange ? bytes - own : 0) +
         (spreads(kind) ? (ranks - 1) * own : 0);
}

// The buffer of a pass that a cut lies in.
enum class CutValue : std::uint8_t {
  kOutput,
  kSaved,
  kContext,
  kWorkspace,
  kGradient,
  kTiedGradient,
  kLoss
};

// The ranks that a value crosses between: those that hold parts of the same units, those that have
// parts of the same sequences, or those that hold copies of the same key/value heads.
enum class CutRanks : std::uint8_t { kTensor, kContext, kSharers };

struct Cut {
  CutKind kind = CutKind::kSum;
  CutValue value = CutValue::kOutput;
  std::uint64_t begin_bytes = 0;  // in the buffer
  std::uint64_t elems = 0;
  DType dtype = DType::kF32;
  // In a forward pass: the saved parts that are made of it. A Recompute that makes none of them has
  // no such cut. 0: only the output is made of it.
  PartMask parts = 0;
  CutRanks among = CutRanks::kTensor;
  std::uint64_t bytes() const { return sluice::bytes_of(dtype, elems); }
  bool operator==(const Cut&) const = default;
};

// The cuts after each segment. A pass has at least one segment.
using PassSegments = std::vector<std::vector<Cut>>;

struct UnitSegments {
  PassSegments forward{{}};  // and of a Recompute
  PassSegments loss{{}};
  PassSegments backward_input{{}};
  PassSegments backward_weight{{}};
  bool operator==(const UnitSegments&) const = default;
};

// Segments [begin, end) of a pass; all of it by default.
struct SegmentRange {
  std::int32_t begin = 0;
  std::int32_t end = std::numeric_limits<std::int32_t>::max();
  bool has(std::int32_t segment) const { return begin <= segment && segment < end; }
  bool operator==(const SegmentRange&) const = default;
};

}  // namespace sluice::schedule
