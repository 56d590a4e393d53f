// A bucket is divided into one part for each rank. In step s of the first half, rank r sends part
// r - s to rank r + 1 and adds what it receives, part r - s - 1, to its own values. After N - 1
// steps rank r holds the sum of part r + 1. In the second half the sums travel on in the same way.
#include "collectives/ring_all_reduce.hpp"

#include <algorithm>

namespace sluice::collectives {
namespace {

// The division of `count` elements from `begin` on into parts of equal length, the last ones
// shorter or empty.
struct Bucket {
  std::uint64_t begin, count, length;
  std::uint64_t part_begin(std::uint64_t part) const {
    return begin + std::min(count, length * part);
  }
  std::uint64_t part_elems(std::uint64_t part) const {
    return part_begin(part + 1) - part_begin(part);
  }
};

class Ring {
 public:
  Ring(Communicator& group, void* data, DType dtype, void* workspace)
      : group_(group),
        data_(static_cast<std::byte*>(data)),
        dtype_(dtype),
        workspace_(workspace),
        rank_(static_cast<std::uint64_t>(group.rank())),
        ranks_(static_cast<std::uint64_t>(group.size())) {}

  void reduce(const Bucket& bucket) {
    for (std::uint64_t step = 0; step + 1 < ranks_; ++step) {
      const std::uint64_t received = part_at(step + 1);
      pass(bucket, part_at(step), received, workspace_);
      const std::uint64_t elems = bucket.part_elems(received);
      if (elems == 0) continue;
      std::byte* const own = at(bucket, received);
      // The partial sum that came is the left operand.
      group_.fold_parts({own, workspace_, 1, 2}, {dtype_, dtype_}, own, elems);
    }
    for (std::uint64_t step = 0; step + 1 < ranks_; ++step) {
      const std::uint64_t received = part_at(step);
      pass(bucket, part_at(step + ranks_ - 1), received, at(bucket, received));
    }
  }

 private:
  // The part `back` places before this rank's.
  std::uint64_t part_at(std::uint64_t back) const { return (rank_ + 2 * ranks_ - back) % ranks_; }
  std::byte* at(const Bucket& bucket, std::uint64_t part) const {
    return data_ + bytes_of(dtype_, bucket.part_begin(part));
  }
  void pass(const Bucket& bucket, std::uint64_t sent, std::uint64_t received, void* to) {
    const Outgoing outgoing{static_cast<int>((rank_ + 1) % ranks_), at(bucket, sent),
                            bytes_of(dtype_, bucket.part_elems(sent))};
    const Incoming incoming{static_cast<int>((rank_ + ranks_ - 1) % ranks_), to,
                            bytes_of(dtype_, bucket.part_elems(received))};
    group_.exchange("ring_all_reduce", {&outgoing, 1}, {&incoming, 1});
  }

  Communicator& group_;
  std::byte* const data_;
  const DType dtype_;
  void* const workspace_;
  const std::uint64_t rank_, ranks_;
};

std::uint64_t part_length(const Communicator& group, std::uint64_t elems) {
  const auto ranks = static_cast<std::uint64_t>(group.size());
  return (elems + ranks - 1) / ranks;
}

}  // namespace

std::uint64_t ring_all_reduce_workspace_bytes(const Communicator& group, std::uint64_t count,
                                              DType dtype, std::uint64_t bucket_elems) {
  if (group.size() == 1) return 0;
  return bytes_of(dtype, part_length(group, std::min(count, bucket_elems)));
}

void ring_all_reduce(Communicator& group, void* data, std::uint64_t count, DType dtype,
                     std::uint64_t bucket_elems, void* workspace) {
  SLUICE_CHECK(bucket_elems >= 1);
  if (group.size() == 1) return group.check();
  Ring ring(group, data, dtype, workspace);
  for (std::uint64_t begin = 0; begin < count; begin += bucket_elems) {
    const std::uint64_t elems = std::min(bucket_elems, count - begin);
    ring.reduce({begin, elems, part_length(group, elems)});
  }
}

}  // namespace sluice::collectives
