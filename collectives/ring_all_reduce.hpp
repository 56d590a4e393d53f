// The classical ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009): a reduce-scatter around the ring, then an all-gather.
//
// It is offered by name and stands outside law 1. Its sums depend on the number of ranks: part c is
// added in the order c, c+1, ..., c-1 of the ranks, and 16-bit floats are rounded at each hop. The
// bits are reproducible for one number of ranks and one bucket size.
#pragma once

#include <cstdint>

#include "collectives/communicator.hpp"

namespace sluice::collectives {

std::uint64_t ring_all_reduce_workspace_bytes(const Communicator& group, std::uint64_t count,
                                              DType dtype, std::uint64_t bucket_elems);
// Sums data [count] over the ranks, in place, one bucket of at most bucket_elems >= 1 elements
// after the other. Each rank sends and receives 2 (N - 1) / N of the bytes, up to uneven parts.
void ring_all_reduce(Communicator& group, void* data, std::uint64_t count, DType dtype,
                     std::uint64_t bucket_elems, void* workspace);

}  // namespace sluice::collectives
