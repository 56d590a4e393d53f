// A gather sends the own shard to all others and receives theirs. An exchange sends to each other
// rank the part of its shard and receives N - 1 parts of the own one. The formulas follow
// rank_exchange.cpp; the tests compare them with the bytes of schedules.
#include "engine/planner/price/rank_traffic.hpp"

#include <algorithm>
#include <array>

#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

// Elements of all units, and of the tied use.
struct Elems {
  double all = 0, own = 0;
};

Elems elems_of(const schedule::StepModel& model, std::size_t units) {
  Elems elems;
  for (std::size_t at = 0; at < units; ++at) {
    const auto unit = static_cast<std::int32_t>(at);
    elems.all += static_cast<double>(schedule::unit_elems(model, unit));
    elems.own += static_cast<double>(schedule::shard_of(model, unit, model.view.rank).elems());
  }
  return elems;
}

// The elements of all units, and of the tied use, that a rank owns.
double owned_by(const schedule::StepModel& model, std::int32_t rank) {
  double elems = 0;
  const std::size_t units = model.units.size() + (model.tied_elems > 0 ? 1 : 0);
  for (std::size_t at = 0; at < units; ++at) {
    elems +=
        static_cast<double>(schedule::shard_of(model, static_cast<std::int32_t>(at), rank).elems());
  }
  return elems;
}

// Bytes in both directions, by kind of link.
struct Moved {
  explicit Moved(const schedule::StepModel& model, const RankLinks& links)
      : self(model.view.rank), of(links) {}
  void add(std::int32_t peer, double sent, double received) {
    const std::size_t kind = of.share_node(self, peer) ? 0 : 1;
    sent_bytes[kind] += sent;
    received_bytes[kind] += received;
  }
  RankLinks::Messages busier() const {
    return {0, 0, std::max(sent_bytes[0], received_bytes[0]),
            std::max(sent_bytes[1], received_bytes[1])};
  }

  std::int32_t self;
  const RankLinks& of;
  std::array<double, 2> sent_bytes{}, received_bytes{};
};

// A rank does not send its own shard around the ring, and does not receive that of the rank before it.
RankLinks::Messages ring_messages(const schedule::StepModel& model, double all,
                                  const RankLinks& links) {
  const schedule::RankView& view = model.view;
  const std::int32_t before = (view.rank + view.ranks - 1) % view.ranks;
  Moved moved(model, links);
  moved.add((view.rank + 1) % view.ranks, sizeof(float) * (all - owned_by(model, view.rank)), 0);
  moved.add(before, 0, sizeof(float) * (all - owned_by(model, before)));
  return moved.busier();
}

// Each rank of the node gets the parts of its place's shards, and then the ranks of one place exchange
// their sums (node_sum.cpp).
RankLinks::Messages node_messages(const schedule::StepModel& model, std::int32_t node_ranks,
                                  double partial_bytes, const RankLinks& links) {
  const schedule::RankView& view = model.view;
  const std::int32_t node = view.rank / node_ranks;
  const std::int32_t place = view.rank % node_ranks;
  const auto of_place = [&](std::int32_t at) {
    double elems = 0;
    for (std::int32_t rank = at; rank < view.ranks; rank += node_ranks) {
      elems += owned_by(model, rank);
    }
    return elems;
  };
  Moved moved(model, links);
  for (std::int32_t at = 0; at < node_ranks; ++at) {
    if (at == place) continue;
    moved.add(node * node_ranks + at, partial_bytes * of_place(at),
              partial_bytes * of_place(place));
  }
  for (std::int32_t rank = place; rank < view.ranks; rank += node_ranks) {
    if (rank == view.rank) continue;
    moved.add(rank, sizeof(float) * owned_by(model, rank),
              sizeof(float) * owned_by(model, view.rank));
  }
  return moved.busier();
}

}  // namespace

SentBytes sent_bytes(const schedule::Schedule& list) {
  SentBytes sent;
  for (const schedule::Instruction& instruction : list.instructions) {
    if (instruction.op == schedule::Op::kRelease) continue;
    if (instruction.lane == schedule::Lane::kSend) sent.activations += instruction.bytes;
    if (instruction.lane == schedule::Lane::kInner) sent.inner += instruction.bytes;
    if (instruction.lane != schedule::Lane::kComm) continue;
    const auto& uses = instruction.reads.empty() ? instruction.writes : instruction.reads;
    if (uses.empty()) continue;
    const schedule::Buffer& buffer = list.buffers[uses.front().buffer];
    const bool norm = buffer.role == schedule::BufferRole::kNormPartial;
    const bool weights = buffer.kind == StateKind::kWeight;
    (norm ? sent.norm : weights ? sent.weights : sent.gradients) += instruction.bytes;
  }
  return sent;
}

LinkUse link_use(const schedule::Schedule& list, const RankLinks& links) {
  LinkUse use;
  use.own = schedule::link_bytes(list);
  const std::int32_t self = schedule::world_rank_of(list, 0);
  const auto add = [&](std::int32_t peer, std::uint64_t bytes) {
    (links.share_node(self, peer) ? use.node : use.network) += bytes;
  };
  for (const schedule::Instruction& instruction : list.instructions) {
    if (instruction.op == schedule::Op::kRelease) continue;
    if (instruction.lane == schedule::Lane::kSend) add(instruction.peer, instruction.bytes);
    // Ranks of a tensor group are in one node (classify_ranks).
    if (instruction.lane == schedule::Lane::kInner) use.node += instruction.bytes;
    if (instruction.lane != schedule::Lane::kComm) continue;
    const auto& group = list.groups[static_cast<std::size_t>(instruction.group)];
    for (const schedule::Use& part : instruction.reads) {
      const std::uint64_t bytes = part.bytes == 0 ? list.buffers[part.buffer].bytes : part.bytes;
      if (part.peer >= 0) {
        if (part.peer != self) add(part.peer, bytes);
        continue;
      }
      for (const std::int32_t rank : group.ranks) {
        if (rank != self) add(rank, bytes);
      }
    }
  }
  return use;
}

RankTraffic rank_traffic(const schedule::StepModel& model, const schedule::StepOptions& options,
                         const RankLinks& links) {
  const schedule::RankView& view = model.view;
  RankTraffic traffic;
  if (view.is_alone()) return traffic;
  const double others = view.ranks - 1;
  const std::int32_t rounds = schedule::own_microbatch_count(model, options);
  const bool grouped = options.fold_groups > 1;
  // With groups a rank sends one sum, in fp32 unless it is a single micro-batch.
  const auto dtype_size = static_cast<double>(dtype_bytes(model.dtype));
  const double partial_bytes = grouped && rounds > 1 ? sizeof(float) : dtype_size;
  const double exchanges = grouped ? 1 : rounds;
  const std::size_t units = model.units.size();
  const Elems whole = elems_of(model, units);
  const Elems with_tied = elems_of(model, model.tied_elems > 0 ? units + 1 : units);
  const auto larger = [&](const Elems& elems) {
    return std::max(elems.all - elems.own, others * elems.own);
  };
  if (options.sum == schedule::GradientSum::kRing) {
    traffic.uneven_gradients = ring_messages(model, with_tied.all, links);
  } else if (options.node_ranks > 1 && options.node_ranks < view.ranks) {
    traffic.uneven_gradients = node_messages(model, options.node_ranks, partial_bytes, links);
  } else {
    traffic.gradients = exchanges * partial_bytes * larger(with_tied);
  }
  const double gathered = dtype_size * larger(whole);
  if (view.shards_weights()) {
    traffic.weight_fetch = gathered;
  } else if (view.shards_optimizer()) {
    traffic.weights = gathered;
  } else {
    traffic.gradients += gathered;
  }
  const double block = static_cast<double>(sizeof(double)) / kLawBlockElems;
  traffic.norm = block * larger(whole);
  return traffic;
}

double owned_share(const schedule::StepModel& model) {
  const Elems elems = elems_of(model, model.units.size());
  return elems.all > 0 ? elems.own / elems.all : 1;
}

std::int32_t gradient_arrivals(const schedule::StepModel& model,
                               const schedule::StepOptions& options) {
  return schedule::rounds_gradients(model, options) ? 1 : options.microbatches;
}

}  // namespace sluice::planner
