// A communicator makes at most one transfer to each peer at once. A Gather of many small parts (the
// partials of the norm, one range for each unit) therefore takes several rounds. Sender and receiver
// count the parts of a pair alike, so both sides have equally many rounds for it.
#include "engine/runtime/collective_runner.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "engine/runtime/run_state.hpp"

namespace sluice::runtime {
namespace {

using Parts = std::vector<std::vector<const Place*>>;  // by rank, in the order of the list

Parts parts_by_peer(const std::vector<schedule::Use>& uses, const std::vector<Place>& places,
                    std::size_t ranks) {
  Parts parts(ranks);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].peer >= 0) parts[static_cast<std::size_t>(uses[i].peer)].push_back(&places[i]);
  }
  return parts;
}

std::size_t most_parts(const Parts& parts) {
  std::size_t most = 0;
  for (const auto& of_peer : parts) most = std::max(most, of_peer.size());
  return most;
}

}  // namespace

void CollectiveRunner::run(const Program& program, const schedule::Instruction& instruction) {
  try {
    if (instruction.lane == schedule::Lane::kComm) return exchange(program, instruction);
    pass_on(program, instruction);
  } catch (const collectives::CommunicationError& error) {
    throw error.in(describe(instruction));
  }
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

void CollectiveRunner::exchange(const Program& program, const schedule::Instruction& instruction) {
  const auto ranks = static_cast<std::size_t>(groups_.comm.size());
  const auto own = static_cast<std::size_t>(groups_.comm.rank());
  const std::vector<Place>& reads = program.reads(instruction.id);
  Parts from = parts_by_peer(instruction.writes, program.writes(instruction.id), ranks);
  Parts to = parts_by_peer(instruction.reads, reads, ranks);
  const bool gathers = instruction.op == schedule::Op::kGather;
  SLUICE_CHECK(gathers || instruction.op == schedule::Op::kAllToAll);
  if (gathers) {
    const schedule::Group& group =
        program.schedule().groups[static_cast<std::size_t>(instruction.group)];
    for (const Place& place : reads) {
      for (const std::int32_t member : group.ranks) {
        to[static_cast<std::size_t>(member)].push_back(&place);
      }
    }
    // This rank's part, where the window is not its home.
    for (std::size_t i = 0; i < from[own].size(); ++i) {
      const Place& source = *to[own].at(i);
      SLUICE_CHECK(source.bytes == from[own][i]->bytes);
      std::memcpy(from[own][i]->data, source.data, source.bytes);
    }
  }
  to[own].clear();
  from[own].clear();
  const std::size_t rounds = std::max(most_parts(to), most_parts(from));
  const std::string call(schedule::op_name(instruction.op));
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<collectives::Outgoing> outgoing;
    std::vector<collectives::Incoming> incoming;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto peer = static_cast<int>(rank);
      if (round < to[rank].size()) {
        outgoing.push_back({peer, to[rank][round]->data, to[rank][round]->bytes});
      }
      if (round < from[rank].size()) {
        incoming.push_back({peer, from[rank][round]->data, from[rank][round]->bytes});
      }
    }
    groups_.comm.exchange(call.c_str(), outgoing, incoming);
  }
}

}  // namespace sluice::runtime
