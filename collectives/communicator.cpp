// The collectives as exchanges of parts. Each rank sends every other rank the part that belongs
// there, directly: the bytes are the least that any algorithm sends, and a sum sees all its parts
// at once, so it can follow the tree.
#include "collectives/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/fold.hpp"

namespace sluice::collectives {
namespace {

// The end of an offset of `elems` elements.
const std::byte* at(const void* data, std::uint64_t elems, DType dtype) {
  return static_cast<const std::byte*>(data) + bytes_of(dtype, elems);
}
std::byte* at(void* data, std::uint64_t elems, DType dtype) {
  return static_cast<std::byte*>(data) + bytes_of(dtype, elems);
}

std::uint64_t begin_of(std::span<const std::uint64_t> counts, int rank) {
  const auto first = counts.first(static_cast<std::size_t>(rank));
  return std::accumulate(first.begin(), first.end(), std::uint64_t{0});
}
std::uint64_t count_of(std::span<const std::uint64_t> counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}
bool are_equal(std::span<const std::uint64_t> counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

template <class Transfer>
std::uint64_t sum_bytes(const std::vector<Transfer>& transfers) {
  std::uint64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.bytes;
  return bytes;
}

}  // namespace

CommunicationError::CommunicationError(int failed_rank, std::string failed_call,
                                       const std::string& reason)
    : Error(failed_call + ": " + reason),
      rank(failed_rank),
      call(std::move(failed_call)),
      why(reason) {}

void Communicator::all_gather(const void* source, void* destination, Counts counts, DType dtype) {
  gather_parts("all_gather", source, destination, counts, dtype);
}
void Communicator::all_gather(const void* source, void* destination, std::uint64_t count,
                              DType dtype) {
  all_gather(source, destination, equal_counts(count), dtype);
}

std::uint64_t Communicator::reduce_scatter_workspace_bytes(Counts counts, DType part) const {
  if (size_ == 1) return 0;
  return static_cast<std::uint64_t>(size_) * bytes_of(part, count_of(counts, rank_));
}
std::uint64_t Communicator::reduce_scatter_workspace_bytes(std::uint64_t count, DType part) const {
  return reduce_scatter_workspace_bytes(equal_counts(count), part);
}
void Communicator::reduce_scatter(const void* source, void* destination, Counts counts,
                                  ReductionTypes types, void* workspace) {
  exchange_and_fold("reduce_scatter", source, destination, counts, types, workspace);
}
void Communicator::reduce_scatter(const void* source, void* destination, std::uint64_t count,
                                  DType dtype, void* workspace) {
  reduce_scatter(source, destination, equal_counts(count), {dtype, dtype}, workspace);
}

std::uint64_t Communicator::all_reduce_workspace_bytes(std::uint64_t count, DType dtype) const {
  return reduce_scatter_workspace_bytes(even_counts(count), dtype);
}
void Communicator::all_reduce(void* data, std::uint64_t count, DType dtype, void* workspace) {
  check_usable("all_reduce");
  if (size_ == 1) return;
  const std::vector<std::uint64_t> counts = even_counts(count);
  void* const own = at(data, begin_of(counts, rank_), dtype);
  exchange_and_fold("all_reduce", data, own, counts, {dtype, dtype}, workspace);
  gather_parts("all_reduce", own, data, counts, dtype);
}

void Communicator::all_to_all(const void* source, Counts to, void* destination, Counts from,
                              DType dtype) {
  check_usable("all_to_all");
  check_counts("all_to_all", to);
  check_counts("all_to_all", from);
  SLUICE_CHECK(count_of(to, rank_) == count_of(from, rank_));
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    outgoing.push_back(
        {peer, at(source, begin_of(to, peer), dtype), bytes_of(dtype, count_of(to, peer))});
    incoming.push_back({peer, at(destination, begin_of(from, peer), dtype),
                        bytes_of(dtype, count_of(from, peer))});
  }
  const std::uint64_t own_bytes = bytes_of(dtype, count_of(to, rank_));
  if (own_bytes > 0) {
    copy(at(destination, begin_of(from, rank_), dtype), at(source, begin_of(to, rank_), dtype),
         own_bytes);
  }
  transfer_counted("all_to_all", 0, outgoing, incoming);
}

void Communicator::broadcast(void* data, std::uint64_t count, DType dtype, int root) {
  check_usable("broadcast");
  SLUICE_CHECK(root >= 0 && root < size_);
  const std::uint64_t bytes = bytes_of(dtype, count);
  if (bytes == 0 || size_ == 1) return;
  if (broadcast_natively(data, bytes, root)) {
    if (rank_ == root) {
      sent_bytes_ += bytes * static_cast<std::uint64_t>(size_ - 1);
    } else {
      received_bytes_ += bytes;
    }
    return;
  }
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  if (rank_ != root) incoming.push_back({root, data, bytes});
  for (int peer = 0; rank_ == root && peer < size_; ++peer) {
    if (peer != root) outgoing.push_back({peer, data, bytes});
  }
  transfer_counted("broadcast", 0, outgoing, incoming);
}

void Communicator::send(const void* data, std::uint64_t bytes, int peer, int tag) {
  check_usable("send");
  check_peer("send", peer, tag);
  const Outgoing outgoing{peer, data, bytes};
  transfer_counted("send", tag, {&outgoing, 1}, {});
}
void Communicator::receive(void* data, std::uint64_t bytes, int peer, int tag) {
  check_usable("receive");
  check_peer("receive", peer, tag);
  const Incoming incoming{peer, data, bytes};
  transfer_counted("receive", tag, {}, {&incoming, 1});
}

void Communicator::exchange(const char* call, std::span<const Outgoing> outgoing,
                            std::span<const Incoming> incoming) {
  check_usable(call);
  for (const Outgoing& transfer : outgoing) check_peer(call, transfer.peer, 0);
  for (const Incoming& transfer : incoming) check_peer(call, transfer.peer, 0);
  transfer_counted(call, 0, outgoing, incoming);
}

void Communicator::fold_parts(const RankParts& parts, ReductionTypes types, void* out,
                              std::uint64_t elems) {
  std::vector<const void*> pointers;
  for (int rank = 0; rank < parts.ranks; ++rank) {
    pointers.push_back(
        rank == parts.own_rank
            ? parts.own
            : at(parts.others, elems * static_cast<std::uint64_t>(rank), types.part));
  }
  fold_tree(pointers, types.part, out, types.sum, elems);
}

void Communicator::copy(void* to, const void* from, std::uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
bool Communicator::gather_natively(const void* /*source*/, void* /*destination*/,
                                   std::uint64_t /*part_bytes*/) {
  return false;
}
bool Communicator::broadcast_natively(void* /*data*/, std::uint64_t /*bytes*/, int /*root*/) {
  return false;
}

void Communicator::meet_all() {
  for (int distance = 1; distance < size_; distance *= 2) {
    const std::byte sent{1};
    std::byte received{};
    const Outgoing outgoing{(rank_ + distance) % size_, &sent, 1};
    const Incoming incoming{(rank_ + size_ - distance) % size_, &received, 1};
    transfer("barrier", 0, {&outgoing, 1}, {&incoming, 1});
  }
}

void Communicator::check_members(std::span<const int> members) const {
  SLUICE_CHECK(std::is_sorted(members.begin(), members.end(), std::less_equal<>()));
  SLUICE_CHECK(!members.empty() && members.front() >= 0 && members.back() < size_);
  SLUICE_CHECK(std::find(members.begin(), members.end(), rank_) != members.end());
}

std::string Communicator::describe_place() const {
  return "rank " + std::to_string(rank_) + " of " + std::to_string(size_);
}

void Communicator::gather_parts(const char* call, const void* source, void* destination,
                                Counts counts, DType dtype) {
  check_usable(call);
  check_counts(call, counts);
  const std::uint64_t own_bytes = bytes_of(dtype, count_of(counts, rank_));
  if (size_ > 1 && own_bytes > 0 && are_equal(counts) &&
      gather_natively(source, destination, own_bytes)) {
    const std::uint64_t bytes = own_bytes * static_cast<std::uint64_t>(size_ - 1);
    sent_bytes_ += bytes;
    received_bytes_ += bytes;
    return;
  }
  void* const own = at(destination, begin_of(counts, rank_), dtype);
  if (own != source && own_bytes > 0) copy(own, source, own_bytes);
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    outgoing.push_back({peer, source, own_bytes});
    incoming.push_back({peer, at(destination, begin_of(counts, peer), dtype),
                        bytes_of(dtype, count_of(counts, peer))});
  }
  transfer_counted(call, 0, outgoing, incoming);
}

// The other ranks' values of this rank's part arrive in the workspace, one part after the other in
// rank order.
void Communicator::exchange_and_fold(const char* call, const void* source, void* destination,
                                     Counts counts, ReductionTypes types, void* workspace) {
  check_usable(call);
  check_counts(call, counts);
  const std::uint64_t own = count_of(counts, rank_);
  const void* const own_part = at(source, begin_of(counts, rank_), types.part);
  if (size_ == 1 && types.part == types.sum) {
    if (own > 0 && destination != own_part) copy(destination, own_part, bytes_of(types.part, own));
    return;
  }
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    outgoing.push_back({peer, at(source, begin_of(counts, peer), types.part),
                        bytes_of(types.part, count_of(counts, peer))});
    incoming.push_back({peer, at(workspace, own * static_cast<std::uint64_t>(peer), types.part),
                        bytes_of(types.part, own)});
  }
  transfer_counted(call, 0, outgoing, incoming);
  if (own > 0) fold_parts({own_part, workspace, rank_, size_}, types, destination, own);
}

void Communicator::transfer_counted(const char* call, int tag, std::span<const Outgoing> outgoing,
                                    std::span<const Incoming> incoming) {
  std::vector<Outgoing> sent;
  std::vector<Incoming> received;
  for (const Outgoing& transfer : outgoing) {
    if (transfer.bytes > 0) sent.push_back(transfer);
  }
  for (const Incoming& transfer : incoming) {
    if (transfer.bytes > 0) received.push_back(transfer);
  }
  if (sent.empty() && received.empty()) return;
  transfer(call, tag, sent, received);
  sent_bytes_ += sum_bytes(sent);
  received_bytes_ += sum_bytes(received);
}

void Communicator::check_counts(const char* call, Counts counts) const {
  SLUICE_CHECK_MSG(
      counts.size() == static_cast<std::size_t>(size_),
      std::string(call) + " of " + std::to_string(counts.size()) + " parts on " + describe_place());
}
void Communicator::check_peer(const char* call, int peer, int tag) const {
  SLUICE_CHECK_MSG(peer >= 0 && peer < size_ && peer != rank_ && tag >= 0 && tag <= kMostTag,
                   std::string(call) + " with peer " + std::to_string(peer) + ", tag " +
                       std::to_string(tag) + " on " + describe_place());
}

std::vector<std::uint64_t> Communicator::equal_counts(std::uint64_t count) const {
  return std::vector<std::uint64_t>(static_cast<std::size_t>(size_), count);
}
std::vector<std::uint64_t> Communicator::even_counts(std::uint64_t count) const {
  const auto ranks = static_cast<std::uint64_t>(size_);
  std::vector<std::uint64_t> counts = equal_counts(count / ranks);
  for (std::uint64_t rank = 0; rank < count % ranks; ++rank) ++counts[rank];
  return counts;
}

}  // namespace sluice::collectives
