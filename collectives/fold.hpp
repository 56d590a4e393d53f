// The sum over ranks, and over groups of micro-batches: the tree of law 2.
//
// A sum of n parts is a balanced binary tree that splits at the largest power of two below n. The
// sum of 6 parts is ((0+1)+(2+3)) + (4+5). Two facts follow:
//
//  - Parts that come in order need few partial sums. Each new part is a sum of one; then the two
//    newest sums are added while they cover equally many parts, as a binary counter carries. After
//    the last part all are added, the newest first.
//  - Aligned blocks of 2^k parts are subtrees. So a rank that holds such a block, or a node that
//    holds such ranks, may add its parts alone: the tree over the blocks' sums gives the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"

namespace sluice::collectives {

// How often the newest of the partial sums is added to the one before it after part `part` (from 0)
// of `parts` has come.
constexpr int count_additions(std::uint64_t part, std::uint64_t parts) {
  const std::uint64_t come = part + 1;
  // A part of a counter's value 2^k * odd completes k carries. At the end one sum remains for each
  // bit that is set.
  return std::countr_zero(come) + (come == parts ? std::popcount(come) - 1 : 0);
}

// The most partial sums that are held at once: the new part, and one for each lower bit.
constexpr int count_partial_sums(std::uint64_t parts) {
  return std::bit_width(parts);
}

// out [elems]: the sum of the parts along the tree. Floats of 16 bits are added in fp32 and rounded
// once, to nearest even; integers wrap. The types are equal, or fp32 and a 16-bit float. out may be
// one of the parts if they are equal. Other dtypes: InternalError. Runs on the calling thread.
void fold_tree(std::span<const void* const> parts, DType part, void* out, DType result,
               std::uint64_t elems);

}  // namespace sluice::collectives
