// A communicator makes at most one transfer to each peer at once. A Gather of many small parts (the
// partials of the norm, one range for each unit) therefore takes several rounds. Sender and
// receiver count the parts of a pair alike, so both sides have equally many rounds for it.
//
// Through pinned memory a round takes several pieces. A part is as long on both sides, so a pair of
// ranks has equally many pieces, too. Each peer has a place in the staging memory for what it is
// sent and one for what it sends. The wait for the copies down of a piece is also the wait for the
// copies up of the piece before, which then no longer need their places.
//
// A call of the GPUs' group is waited for at once. A kernel of NCCL that waits for a dead rank ends
// only when its communicator is asked, and the thread that made the call is the one to ask it. So
// none is queued while that thread waits for something else.
#include "engine/runtime/collective_runner.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/runtime/run_state.hpp"
#include "engine/runtime/staged_cut.hpp"
#include "engine/schedule/even_parts.hpp"

namespace sluice::runtime {
namespace {

// The places of lanes send and receive, after those of the collectives.
constexpr std::uint64_t kStagePlaces = 2;
constexpr std::chrono::microseconds kPollPause{20};

using PartsByRank = std::vector<std::vector<const Place*>>;  // each in the order of the list

PartsByRank parts_by_peer(const schedule::Uses& uses, const std::vector<Place>& places,
                          std::size_t ranks) {
  PartsByRank parts(ranks);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].peer >= 0) parts[static_cast<std::size_t>(uses[i].peer)].push_back(&places[i]);
  }
  return parts;
}

const Place* part_at(const PartsByRank& parts, std::size_t rank, std::size_t round) {
  return round < parts[rank].size() ? parts[rank][round] : nullptr;
}

bool is_on_device(const Place& place) {
  return place.buffer->tier == Tier::kDevice;
}

device::CopyKind copy_kind(const Place& target, const Place& source) {
  if (!is_on_device(source)) return device::CopyKind::kHostToDevice;
  return is_on_device(target) ? device::CopyKind::kDeviceToDevice : device::CopyKind::kDeviceToHost;
}

}  // namespace

// The transfers of a collective on this rank.
struct CollectiveRunner::Parts {
  PartsByRank to, from;
  std::vector<std::pair<const Place*, const Place*>> copies;  // target and source, on this rank

  std::size_t rounds() const {
    std::size_t most = 0;
    for (const PartsByRank* parts : {&to, &from}) {
      for (const auto& of_peer : *parts) most = std::max(most, of_peer.size());
    }
    return most;
  }
  std::uint64_t most_bytes(std::size_t round) const {
    std::uint64_t most = 0;
    for (const PartsByRank* parts : {&to, &from}) {
      for (std::size_t rank = 0; rank < parts->size(); ++rank) {
        const Place* const place = part_at(*parts, rank, round);
        if (place != nullptr) most = std::max(most, place->bytes);
      }
    }
    return most;
  }
  bool are_on_device() const {
    const auto lies_there = [](const std::vector<const Place*>& of_peer) {
      return std::all_of(of_peer.begin(), of_peer.end(),
                         [](const Place* place) { return is_on_device(*place); });
    };
    return std::all_of(to.begin(), to.end(), lies_there) &&
           std::all_of(from.begin(), from.end(), lies_there);
  }
};

std::uint64_t CollectiveRunner::staging_bytes(int comm_ranks, int inner_ranks, bool has_stages) {
  const std::uint64_t comm = comm_ranks > 1 ? 2 * static_cast<std::uint64_t>(comm_ranks) : 0;
  return StagedCut::staging_bytes(inner_ranks) +
         (comm + (has_stages ? kStagePlaces : 0)) * kPieceBytes;
}

std::byte* CollectiveRunner::staged_at(std::size_t place) const {
  const std::uint64_t begin = StagedCut::staging_bytes(gpu_->inner_ranks) + place * kPieceBytes;
  SLUICE_CHECK(begin + kPieceBytes <= gpu_->staging.size());
  return &gpu_->staging[begin];
}

void CollectiveRunner::run(const Program& program, const schedule::Instruction& instruction) {
  try {
    if (instruction.lane == schedule::Lane::kInner) return reduce(program, instruction);
    if (instruction.lane != schedule::Lane::kComm) return pass_on(program, instruction);
    const Parts parts = parts_of(program, instruction);
    for (const auto& [target, source] : parts.copies) {
      std::memcpy(target->data, source->data, source->bytes);
    }
    exchange(parts, std::string(schedule::op_name(instruction.op)).c_str(), groups_.comm);
  } catch (const collectives::CommunicationError& error) {
    throw error.in(describe(instruction));
  }
}

void CollectiveRunner::run_on_gpu(const Program& program, const schedule::Instruction& instruction,
                                  device::Stream& stream) {
  try {
    if (instruction.lane == schedule::Lane::kInner) {
      return reduce_staged(program, instruction, stream);
    }
    if (instruction.lane != schedule::Lane::kComm) {
      return pass_on_staged(program, instruction, stream);
    }
    const Parts parts = parts_of(program, instruction);
    for (const auto& [target, source] : parts.copies) {
      if (is_on_device(*target) || is_on_device(*source)) {
        stream.copy(target->data, source->data, source->bytes, copy_kind(*target, *source));
      } else {
        wait_for(stream);
        std::memcpy(target->data, source->data, source->bytes);
      }
    }
    const std::string call(schedule::op_name(instruction.op));
    if (gpu_group_ != nullptr && parts.are_on_device()) {
      exchange_on_gpus(parts, call.c_str(), stream);
    } else {
      exchange_staged(parts, call.c_str(), stream);
    }
  } catch (const collectives::CommunicationError& error) {
    throw error.in(describe(instruction));
  }
}

// Every value has a round of its own, since the workspace holds the parts of one.
void CollectiveRunner::reduce(const Program& program, const schedule::Instruction& instruction) {
  const std::vector<Place>& writes = program.writes(instruction.id);
  const std::vector<std::int32_t>& members =
      program.schedule().groups[static_cast<std::size_t>(instruction.group)].ranks;
  SLUICE_CHECK(instruction.op == schedule::Op::kAllReduce);
  const std::size_t values = instruction.reads.size();
  std::byte* const others = values < writes.size() ? writes[values].data : nullptr;
  for (std::size_t i = 0; i < values; ++i) {
    const InnerValue value{instruction.reduction, instruction.reduced, writes[i].data,
                           writes[i].bytes, others};
    if (schedule::adds(value.kind)) add_own_part(members, value);
    if (schedule::spreads(value.kind)) spread_own_part(members, value);
    if (value.kind == schedule::CutKind::kExchange) exchange_parts(members, value);
    if (value.kind == schedule::CutKind::kRing) pass_round(members, value);
  }
}

void CollectiveRunner::reduce_staged(const Program& program,
                                     const schedule::Instruction& instruction,
                                     device::Stream& stream) {
  SLUICE_CHECK(instruction.op == schedule::Op::kAllReduce);
  const std::vector<std::int32_t>& members =
      program.schedule().groups[static_cast<std::size_t>(instruction.group)].ranks;
  const std::uint64_t bytes = StagedCut::staging_bytes(static_cast<std::int64_t>(members.size()));
  SLUICE_CHECK(bytes <= StagedCut::staging_bytes(gpu_->inner_ranks));
  StagedCut cut({groups_.inner, stream, gpu_->staging.first(bytes), gpu_->deadline_seconds, members,
                 place_in(members)});
  for (std::size_t i = 0; i < instruction.reads.size(); ++i) {
    cut.run(instruction.reduction, instruction.reduced, program.writes(instruction.id)[i]);
  }
}

// A rank's even part of a value.
std::span<std::byte> CollectiveRunner::part_of(const InnerValue& value, std::size_t ranks,
                                               std::size_t rank) {
  const schedule::ElemRange part =
      schedule::even_part(elems_in(value.dtype, value.bytes), static_cast<std::int32_t>(ranks),
                          static_cast<std::int32_t>(rank));
  return {value.data + bytes_of(value.dtype, part.begin), bytes_of(value.dtype, part.elems())};
}

void CollectiveRunner::add_own_part(const std::vector<std::int32_t>& members,
                                    const InnerValue& value) {
  const std::size_t own = place_in(members);
  const std::span<std::byte> mine = part_of(value, members.size(), own);
  std::vector<collectives::Outgoing> outgoing;
  std::vector<collectives::Incoming> incoming;
  std::vector<const void*> parts;
  std::byte* next = value.others;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    parts.push_back(rank == own ? mine.data() : next);
    if (rank == own) continue;
    const std::span<std::byte> theirs = part_of(value, members.size(), rank);
    outgoing.push_back({members[rank], theirs.data(), theirs.size()});
    incoming.push_back({members[rank], next, mine.size()});
    next += mine.size();
  }
  groups_.inner.exchange("AllReduce", outgoing, incoming);
  const std::uint64_t elems = elems_in(value.dtype, mine.size());
  combine_parts(value.kind, parts, value.dtype, mine.data(), elems);
}

void CollectiveRunner::spread_own_part(const std::vector<std::int32_t>& members,
                                       const InnerValue& value) {
  const std::size_t own = place_in(members);
  const std::span<std::byte> mine = part_of(value, members.size(), own);
  std::vector<collectives::Outgoing> outgoing;
  std::vector<collectives::Incoming> incoming;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (rank == own) continue;
    const std::span<std::byte> theirs = part_of(value, members.size(), rank);
    outgoing.push_back({members[rank], mine.data(), mine.size()});
    incoming.push_back({members[rank], theirs.data(), theirs.size()});
  }
  groups_.inner.exchange("AllReduce", outgoing, incoming);
}

// The parts are equal.
void CollectiveRunner::exchange_parts(const std::vector<std::int32_t>& members,
                                      const InnerValue& value) {
  const std::size_t own = place_in(members);
  std::vector<collectives::Outgoing> outgoing;
  std::vector<collectives::Incoming> incoming;
  std::vector<std::span<std::byte>> places;
  std::byte* next = value.others;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (rank == own) continue;
    places.push_back(part_of(value, members.size(), rank));
    outgoing.push_back({members[rank], places.back().data(), places.back().size()});
    incoming.push_back({members[rank], next, places.back().size()});
    next += places.back().size();
  }
  groups_.inner.exchange("AllReduce", outgoing, incoming);
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::memcpy(places[i].data(), incoming[i].data, places[i].size());
  }
}

void CollectiveRunner::pass_round(const std::vector<std::int32_t>& members,
                                  const InnerValue& value) {
  const std::size_t ranks = members.size(), own = place_in(members);
  const std::vector<collectives::Outgoing> outgoing{
      {members[(own + 1) % ranks], value.data, value.bytes}};
  const std::vector<collectives::Incoming> incoming{
      {members[(own + ranks - 1) % ranks], value.others, value.bytes}};
  groups_.inner.exchange("AllReduce", outgoing, incoming);
  std::memcpy(value.data, value.others, value.bytes);
}

std::size_t CollectiveRunner::place_in(const std::vector<std::int32_t>& members) const {
  const auto at = std::find(members.begin(), members.end(), groups_.inner.rank());
  SLUICE_CHECK(at != members.end());
  return static_cast<std::size_t>(at - members.begin());
}

// Messages of one pair and tag match in the order of the lists.
void CollectiveRunner::pass_on(const Program& program, const schedule::Instruction& instruction) {
  if (instruction.lane == schedule::Lane::kSend) {
    const Place& value = program.reads(instruction.id).front();
    return groups_.messages.send(value.data, value.bytes, instruction.peer, instruction.tag);
  }
  SLUICE_CHECK(instruction.lane == schedule::Lane::kReceive);
  const Place& value = program.writes(instruction.id).front();
  groups_.messages.receive(value.data, value.bytes, instruction.peer, instruction.tag);
}

// Each lane has a place of its own, the last but one and the last.
void CollectiveRunner::pass_on_staged(const Program& program,
                                      const schedule::Instruction& instruction,
                                      device::Stream& stream) {
  const bool sends = instruction.lane == schedule::Lane::kSend;
  SLUICE_CHECK(sends || instruction.lane == schedule::Lane::kReceive);
  const Place& value =
      sends ? program.reads(instruction.id).front() : program.writes(instruction.id).front();
  wait_for(stream);
  if (!is_on_device(value)) return pass_on(program, instruction);
  std::byte* const staged = &gpu_->staging[gpu_->staging.size() - (sends ? 2 : 1) * kPieceBytes];
  for (std::uint64_t offset = 0; offset < value.bytes; offset += kPieceBytes) {
    const std::uint64_t bytes = std::min(value.bytes - offset, kPieceBytes);
    if (sends) {
      stream.copy(staged, value.data + offset, bytes, device::CopyKind::kDeviceToHost);
      wait_for(stream);
      groups_.messages.send(staged, bytes, instruction.peer, instruction.tag);
    } else {
      wait_for(stream);  // for the copy up of the piece before
      groups_.messages.receive(staged, bytes, instruction.peer, instruction.tag);
      stream.copy(value.data + offset, staged, bytes, device::CopyKind::kHostToDevice);
    }
  }
}

CollectiveRunner::Parts CollectiveRunner::parts_of(const Program& program,
                                                   const schedule::Instruction& instruction) const {
  const auto ranks = static_cast<std::size_t>(groups_.comm.size());
  const auto own = static_cast<std::size_t>(groups_.comm.rank());
  const std::vector<Place>& reads = program.reads(instruction.id);
  Parts parts;
  parts.from = parts_by_peer(instruction.writes, program.writes(instruction.id), ranks);
  parts.to = parts_by_peer(instruction.reads, reads, ranks);
  const bool gathers = instruction.op == schedule::Op::kGather;
  SLUICE_CHECK(gathers || instruction.op == schedule::Op::kAllToAll);
  if (gathers) {
    const schedule::Group& group =
        program.schedule().groups[static_cast<std::size_t>(instruction.group)];
    for (const Place& place : reads) {
      for (const std::int32_t member : group.ranks) {
        parts.to[static_cast<std::size_t>(member)].push_back(&place);
      }
    }
    // This rank's part, where the window is not its home.
    for (std::size_t i = 0; i < parts.from[own].size(); ++i) {
      const Place* const source = parts.to[own].at(i);
      SLUICE_CHECK(source->bytes == parts.from[own][i]->bytes);
      parts.copies.emplace_back(parts.from[own][i], source);
    }
  }
  parts.to[own].clear();
  parts.from[own].clear();
  return parts;
}

void CollectiveRunner::exchange(const Parts& parts, const char* call,
                                collectives::Communicator& group) const {
  const std::size_t rounds = parts.rounds();
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<collectives::Outgoing> outgoing;
    std::vector<collectives::Incoming> incoming;
    for (std::size_t rank = 0; rank < parts.to.size(); ++rank) {
      const auto peer = static_cast<int>(rank);
      if (const Place* place = part_at(parts.to, rank, round)) {
        outgoing.push_back({peer, place->data, place->bytes});
      }
      if (const Place* place = part_at(parts.from, rank, round)) {
        incoming.push_back({peer, place->data, place->bytes});
      }
    }
    group.exchange(call, outgoing, incoming);
  }
}

// The group queues its calls like kernels, with the device's context current. On a GPU launch()
// calls at once.
void CollectiveRunner::exchange_on_gpus(const Parts& parts, const char* call,
                                        device::Stream& stream) {
  SLUICE_CHECK(stream.native() != nullptr);
  std::exception_ptr failure;
  bool called = false;
  stream.launch([&] {
    called = true;
    try {
      exchange(parts, call, *gpu_group_);
      while (!gpu_group_->is_idle()) std::this_thread::sleep_for(kPollPause);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  if (!called) wait_for(stream);  // throws the failure for which the stream takes no more work
}

void CollectiveRunner::exchange_staged(const Parts& parts, const char* call,
                                       device::Stream& stream) {
  const std::size_t rounds = parts.rounds();
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::uint64_t bytes = parts.most_bytes(round);
    for (std::uint64_t offset = 0; offset < bytes; offset += kPieceBytes) {
      exchange_piece(parts, round, offset, call, stream);
    }
  }
}

// The piece at `offset_bytes` of each part of the round that is so long.
void CollectiveRunner::exchange_piece(const Parts& parts, std::size_t round,
                                      std::uint64_t offset_bytes, const char* call,
                                      device::Stream& stream) {
  const auto left_of = [&](const Place* place) {
    return place == nullptr || place->bytes <= offset_bytes
               ? std::uint64_t{0}
               : std::min(place->bytes - offset_bytes, kPieceBytes);
  };
  const std::size_t ranks = parts.to.size();
  std::vector<collectives::Outgoing> outgoing;
  std::vector<collectives::Incoming> incoming, arrivals;
  std::map<const std::byte*, std::byte*> copied;  // a Gather sends one part to all peers
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto peer = static_cast<int>(rank);
    const Place* const sent = part_at(parts.to, rank, round);
    if (const std::uint64_t bytes = left_of(sent); bytes > 0) {
      const std::byte* data = sent->data + offset_bytes;
      if (is_on_device(*sent)) {
        const auto [at, fresh] = copied.try_emplace(data, nullptr);
        if (fresh) {
          at->second = staged_at(rank);
          stream.copy(at->second, data, bytes, device::CopyKind::kDeviceToHost);
        }
        data = at->second;
      }
      outgoing.push_back({peer, data, bytes});
    }
    const Place* const received = part_at(parts.from, rank, round);
    if (const std::uint64_t bytes = left_of(received); bytes > 0) {
      std::byte* data = received->data + offset_bytes;
      if (is_on_device(*received)) {
        arrivals.push_back({peer, data, bytes});
        data = staged_at(ranks + rank);
      }
      incoming.push_back({peer, data, bytes});
    }
  }
  wait_for(stream);
  groups_.comm.exchange(call, outgoing, incoming);
  for (const collectives::Incoming& arrival : arrivals) {
    stream.copy(arrival.data, staged_at(ranks + static_cast<std::size_t>(arrival.peer)),
                arrival.bytes, device::CopyKind::kHostToDevice);
  }
}

void CollectiveRunner::wait_for(device::Stream& stream) const {
  stream.synchronize(Deadline::after_seconds(gpu_->deadline_seconds));
}

}  // namespace sluice::runtime
