// 522 lines because lanes, memory and timings make one machine.
//
// A small machine: lanes with instructions in flight, memories with terms, and a policy that picks
// the next start or end. An instruction reads its terms when it starts and writes the results when
// it ends, so a policy that starts early and ends late exposes every missing dep. The policies are
// adverse on purpose (Timing). Messages and collectives act as they do in a run.
#include "engine/schedule/check/interpret.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>

#include "base/rng.hpp"
#include "engine/schedule/check/symbolic_memory.hpp"
#include "engine/schedule/check/symbolic_ops.hpp"

namespace sluice::schedule {
namespace {

using symbolic::Part;
using symbolic::ReadValue;
using symbolic::SymbolicMemory;
using symbolic::SymbolicOps;
using symbolic::WriteTarget;

// Domains of entry values.
constexpr std::uint64_t kEntryState = 1001, kEntryTokens = 1002, kEntryClip = 1003;
constexpr std::size_t kMostErrors = 16;

bool sends(Op op) {
  return op == Op::kSendForward || op == Op::kSendBackward;
}
bool receives(Op op) {
  return op == Op::kRecvForward || op == Op::kRecvBackward;
}
bool meets_all(Op op) {
  return op == Op::kGather || op == Op::kReduceScatter || op == Op::kAllReduce ||
         op == Op::kAllToAll;
}

// The k-th receive of a channel takes the k-th send's bytes; the k-th collective of a rank in a
// (group, tag) meets the k-th of the others.
struct Partners {
  std::vector<InstructionId> partner;               // send <-> receive; kNoId: none
  std::vector<std::vector<InstructionId>> meeting;  // members of a collective, by rank
};

Partners find_partners(const Schedule& schedule) {
  Partners partners;
  partners.partner.assign(schedule.instructions.size(), kNoId);
  partners.meeting.resize(schedule.instructions.size());
  using Channel = std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Channel, std::array<std::vector<InstructionId>, 2>> channels;
  using Round = std::tuple<std::int32_t, std::int32_t, std::size_t>;
  std::map<Round, std::vector<InstructionId>> rounds;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::size_t> rounds_of_rank;
  for (InstructionId i = 0; i < schedule.instructions.size(); ++i) {
    const Instruction& instruction = schedule.instructions[i];
    if (meets_all(instruction.op)) {
      const std::size_t round =
          rounds_of_rank[{instruction.group, instruction.tag, instruction.rank}]++;
      rounds[{instruction.group, instruction.tag, round}].push_back(i);
    }
    const bool send = sends(instruction.op);
    if (!send && !receives(instruction.op)) continue;
    const bool backward =
        instruction.op == Op::kSendBackward || instruction.op == Op::kRecvBackward;
    const std::int32_t from = send ? instruction.rank : instruction.peer;
    const std::int32_t to = send ? instruction.peer : instruction.rank;
    channels[{backward, from, to, instruction.tag}][send ? 0 : 1].push_back(i);
  }
  for (const auto& [channel, ends] : channels) {
    for (std::size_t k = 0; k < std::min(ends[0].size(), ends[1].size()); ++k) {
      partners.partner[ends[0][k]] = ends[1][k];
      partners.partner[ends[1][k]] = ends[0][k];
    }
  }
  for (auto& [round, members] : rounds) {
    std::sort(members.begin(), members.end(), [&](InstructionId a, InstructionId b) {
      return schedule.instructions[a].rank < schedule.instructions[b].rank;
    });
    for (const InstructionId member : members) partners.meeting[member] = members;
  }
  return partners;
}

class Machine {
 public:
  Machine(const Schedule& schedule, const InterpretOptions& options)
      : schedule_(schedule),
        options_(options),
        partners_(find_partners(schedule)),
        draws_{CounterRng(options.seed, stream_of("interpret/timing"))},
        memory_(static_cast<std::size_t>(schedule.ranks),
                schedule::symbolic::SymbolicMemory(schedule)),
        lanes_(static_cast<std::size_t>(schedule.ranks) * kLaneCount),
        started_(schedule.instructions.size(), false),
        done_(schedule.instructions.size(), false),
        running_(schedule.instructions.size()),
        ops_(schedule, options.clip_accepted) {}

  Interpretation run() {
    if (!well_formed()) return std::move(result_);
    enter();
    for (InstructionId i = 0; i < schedule_.instructions.size(); ++i) {
      lane_of(schedule_.instructions[i]).waiting.push_back(i);
    }
    while (result_.errors.size() < kMostErrors) {
      const Action action = pick();
      if (action.instruction == kNoId) break;
      if (action.start) {
        start(action.instruction);
      } else {
        finish(action.instruction);
      }
    }
    report_stuck();
    leave();
    return std::move(result_);
  }

 private:
  using Runs = std::map<std::pair<StateKind, std::int32_t>,
                        std::vector<schedule::symbolic::SymbolicOps::Run>>;
  struct Draws {
    CounterRng random;
    std::uint64_t count = 0;
    std::uint64_t below(std::uint64_t bound) { return random.below(count++, bound); }
  };
  struct LaneState {
    std::deque<InstructionId> waiting;
    std::deque<InstructionId> in_flight;
  };
  struct Touched {
    MemoryRange range;
    bool write = false;
  };
  // The values that an instruction in flight has read and will write.
  struct Running {
    std::vector<schedule::symbolic::ReadValue> reads;
    std::vector<schedule::symbolic::WriteTarget> writes;
    std::vector<Touched> touched;
  };
  struct Action {
    InstructionId instruction = kNoId;
    bool start = false;
  };

  void error(InstructionId id, const std::string& what) {
    if (result_.errors.size() >= kMostErrors) return;
    const Instruction& instruction = schedule_.instructions[id];
    result_.errors.push_back("instruction " + std::to_string(id) + " (" +
                             std::string(op_name(instruction.op)) + ") " + what);
  }

  LaneState& lane_of(const Instruction& instruction) {
    return lanes_[static_cast<std::size_t>(instruction.rank) * kLaneCount +
                  static_cast<std::size_t>(instruction.lane)];
  }

  bool well_formed() {
    for (InstructionId i = 0; i < schedule_.instructions.size(); ++i) {
      const Instruction& instruction = schedule_.instructions[i];
      bool fine = instruction.rank >= 0 && instruction.rank < schedule_.ranks;
      for (const InstructionId dep : instruction.deps) fine = fine && dep < done_.size();
      for (const auto* uses : {&instruction.reads, &instruction.writes}) {
        for (const Use& use : *uses) fine = fine && use.buffer < schedule_.buffers.size();
      }
      if (!fine) error(i, "names what does not exist");
    }
    return result_.errors.empty();
  }

  // Values that are there before the first instruction.
  void enter() {
    const auto fill = [&](const Buffer& buffer, const Term& term, std::uint64_t origin) {
      memory_.at(static_cast<std::size_t>(buffer.rank))
          .write(buffer, schedule::symbolic::Part{0, buffer.bytes, term, origin});
    };
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent || buffer.role != BufferRole::kTokens) continue;
      fill(buffer,
           symbolic::hash_words(
               {kEntryTokens, options_.step, static_cast<std::uint64_t>(buffer.microbatch)}),
           0);
    }
    bool pending = false;
    for (const Residency& residency : schedule_.entry) {
      const Buffer& home = schedule_.buffers.at(residency.home);
      pending = pending || home.kind == StateKind::kGradient;
      if (options_.before != nullptr) {
        enter_as_left(home);
        continue;
      }
      const Term term =
          symbolic::hash_words({kEntryState, static_cast<std::uint64_t>(home.kind),
                                static_cast<std::uint64_t>(home.unit),
                                static_cast<std::uint64_t>(residency.version), part_of(home)});
      fill(home, term, bytes_of(home.dtype, home.first_elem));
    }
    if (!pending) return;
    const Term any = symbolic::hash_words({kEntryClip});
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent || buffer.role != BufferRole::kScalar) continue;
      fill(buffer, options_.before != nullptr ? options_.before->clip.value_or(any) : any, 0);
    }
  }

  // Ranks of a tensor group hold other parts of a unit, those of a context group the same.
  std::uint64_t part_of(const Buffer& home) const {
    return static_cast<std::uint64_t>(ops_.segments().part_of(home.rank));
  }

  void enter_as_left(const Buffer& home) {
    const auto left = options_.before->state.find({home.kind, home.unit});
    if (left == options_.before->state.end()) return;  // a read of it reports the error
    const std::uint64_t base = bytes_of(home.dtype, home.first_elem);
    for (const CarriedState::Run& run : left->second) {
      if (run.place != ops_.segments().place_of(home.rank)) continue;
      const std::uint64_t begin = std::max(run.begin, home.first_elem);
      const std::uint64_t end = std::min(run.end, home.first_elem + home.elems);
      if (begin >= end) continue;
      const std::uint64_t origin = bytes_of(home.dtype, begin);
      memory_.at(static_cast<std::size_t>(home.rank))
          .write(home, schedule::symbolic::Part{origin - base, bytes_of(home.dtype, end) - base,
                                                run.term, origin});
    }
  }

  bool can_start(const LaneState& lane) const {
    if (lane.waiting.empty()) return false;
    const Instruction& next = schedule_.instructions[lane.waiting.front()];
    const bool pipelined = lane_is_pipelined(next.lane);
    const std::size_t depth = pipelined ? std::max(1u, options_.storage_depth) : 1;
    const auto under_way =
        std::count_if(lane.in_flight.begin(), lane.in_flight.end(), [&](InstructionId id) {
          return !pipelined || schedule_.instructions[id].op != Op::kRelease;
        });
    return static_cast<std::size_t>(under_way) < depth &&
           std::all_of(next.deps.begin(), next.deps.end(), [&](InstructionId dep) {
             return done_[dep] || retires_behind(schedule_.instructions[dep], next);
           });
  }
  bool can_finish(const LaneState& lane) const {
    if (lane.in_flight.empty()) return false;
    const InstructionId id = lane.in_flight.front();
    const Op op = schedule_.instructions[id].op;
    const InstructionId partner = partners_.partner[id];
    if (receives(op)) return partner != kNoId && started_[partner];
    if (sends(op)) return !options_.rendezvous || (partner != kNoId && started_[partner]);
    const auto& meeting = partners_.meeting[id];
    return std::all_of(meeting.begin(), meeting.end(),
                       [&](InstructionId member) { return started_[member]; });
  }

  Action pick() {
    std::vector<Action> possible;
    for (const LaneState& lane : lanes_) {
      if (can_start(lane)) possible.push_back({lane.waiting.front(), true});
      if (can_finish(lane)) possible.push_back({lane.in_flight.front(), false});
    }
    if (possible.empty()) return {};
    const auto prefer = [&](auto wanted) {
      const auto middle = std::stable_partition(possible.begin(), possible.end(), wanted);
      if (middle != possible.begin()) possible.erase(middle, possible.end());
    };
    const auto on_lane = [&](const Action& action) {
      return schedule_.instructions[action.instruction].lane == options_.lane;
    };
    switch (options_.timing) {
      case Timing::kListOrder:
        return *std::min_element(
            possible.begin(), possible.end(), [](const Action& a, const Action& b) {
              return std::pair(a.start, a.instruction) < std::pair(b.start, b.instruction);
            });
      case Timing::kRandom:
        break;
      case Timing::kOverlap:
        prefer([](const Action& action) { return action.start; });
        break;
      case Timing::kRunAhead:
        prefer(on_lane);
        break;
      case Timing::kHoldBack:
        prefer([&](const Action& action) { return !on_lane(action); });
        break;
    }
    return possible[draws_.below(possible.size())];
  }

  void start(InstructionId id) {
    const Instruction& instruction = schedule_.instructions[id];
    LaneState& lane = lane_of(instruction);
    lane.waiting.pop_front();
    lane.in_flight.push_back(id);
    started_[id] = true;
    // In a pipelined lane the effect comes when the instruction retires.
    if (instruction.op == Op::kRelease && lane_is_pipelined(instruction.lane)) return;
    occupy(id);
  }

  // Reads the values; from here on the instruction's memory is in use.
  void occupy(InstructionId id) {
    const Instruction& instruction = schedule_.instructions[id];
    Running& running = running_[id];
    schedule::symbolic::SymbolicMemory& memory =
        memory_[static_cast<std::size_t>(instruction.rank)];
    const bool release = instruction.op == Op::kRelease;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = schedule_.buffers[use.buffer];
      const bool all = use.bytes == 0 || release;
      const std::uint64_t begin = all ? 0 : use.offset_bytes;
      const std::uint64_t end = all ? buffer.bytes : begin + use.bytes;
      touch(id, buffer, begin, end, release || buffer.role == BufferRole::kWorkspace);
      // Between the segments of a pass its workspace holds values.
      const bool holds = instruction.lane == Lane::kInner || instruction.segments.begin > 0;
      if (release || (buffer.role == BufferRole::kWorkspace && !holds)) continue;
      std::string problem;
      schedule::symbolic::ReadValue value{
          &buffer, begin, end, false, memory.read(buffer, begin, end, problem), use.peer};
      for (const Use& write : instruction.writes) {
        value.in_place = value.in_place || write.buffer == use.buffer;
      }
      if (!problem.empty()) {
        error(id, "reads " + problem + " through buffer " + std::to_string(buffer.id));
      }
      running.reads.push_back(std::move(value));
    }
    for (const Use& use : instruction.writes) {
      const Buffer& buffer = schedule_.buffers[use.buffer];
      const bool all = use.bytes == 0 || release;
      const std::uint64_t begin = all ? 0 : use.offset_bytes;
      const std::uint64_t end = all ? buffer.bytes : begin + use.bytes;
      touch(id, buffer, begin, end, true);
      running.writes.push_back({&buffer, begin, end, use.peer});
    }
    check_overlaps(id);
  }

  void touch(InstructionId id, const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
             bool write) {
    const std::vector<MemoryRange> ranges = ranges_of(schedule_, buffer, begin, end);
    if (buffer.rank != schedule_.instructions[id].rank || ranges.empty()) {
      error(id, "uses bytes that buffer " + std::to_string(buffer.id) + " does not have");
      return;
    }
    for (const MemoryRange& range : ranges) running_[id].touched.push_back({range, write});
  }

  static bool meet(const MemoryRange& a, const MemoryRange& b) {
    return a.memory == b.memory && a.begin_bytes < b.end_bytes && b.begin_bytes < a.end_bytes;
  }

  // Two instructions in flight must not overlap in memory if one of them writes.
  void check_overlaps(InstructionId id) {
    const auto rank = static_cast<std::size_t>(schedule_.instructions[id].rank);
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      for (const InstructionId other : lanes_[rank * kLaneCount + lane].in_flight) {
        if (other == id) continue;
        for (const Touched& mine : running_[id].touched) {
          for (const Touched& theirs : running_[other].touched) {
            if ((mine.write || theirs.write) && meet(mine.range, theirs.range)) {
              error(id, "touches the memory of instruction " + std::to_string(other) +
                            " while it runs");
              return;
            }
          }
        }
      }
    }
  }

  void finish(InstructionId id) {
    const Instruction& instruction = schedule_.instructions[id];
    lane_of(instruction).in_flight.pop_front();
    done_[id] = true;
    schedule::symbolic::SymbolicMemory& memory =
        memory_[static_cast<std::size_t>(instruction.rank)];
    if (instruction.op == Op::kRelease) {
      if (lane_is_pipelined(instruction.lane)) occupy(id);
      for (const auto* uses : {&instruction.reads, &instruction.writes}) {
        for (const Use& use : *uses) memory.poison(schedule_.buffers[use.buffer]);
      }
      return;
    }
    if (instruction.op == Op::kCommit) {
      for (const schedule::symbolic::ReadValue& read : running_[id].reads) {
        auto& list = committed_[{read.buffer->kind, read.buffer->unit}];
        for (const schedule::symbolic::SymbolicOps::Run& run :
             schedule::symbolic::SymbolicOps::runs_of(read))
          list.push_back(run);
      }
    }
    const symbolic::Emit emit = [&](const schedule::symbolic::WriteTarget& target,
                                    const schedule::symbolic::Part& part) {
      memory.write(*target.buffer, part);
    };
    const std::vector<schedule::symbolic::WriteTarget> writes = std::move(running_[id].writes);
    if (receives(instruction.op)) {
      schedule::symbolic::SymbolicOps::copy(running_[partners_.partner[id]].reads, writes, emit);
    } else if (meets_all(instruction.op)) {
      std::vector<schedule::symbolic::Member> members;
      for (const InstructionId member : partners_.meeting[id]) {
        const Instruction& of = schedule_.instructions[member];
        members.push_back(
            {world_rank_of(schedule_, of.rank), &running_[member].reads, of.reduction});
      }
      if (instruction.lane == Lane::kInner) {
        ops_.cross(instruction, members, writes, emit);
      } else {
        schedule::symbolic::exchange(instruction.op, world_rank_of(schedule_, instruction.rank),
                                     members, writes, emit);
      }
    } else {
      ops_.apply(instruction, running_[id].reads, writes, emit);
      if (!sends(instruction.op)) running_[id] = {};
    }
  }

  void report_stuck() {
    if (!result_.errors.empty()) return;
    for (InstructionId i = 0; i < done_.size(); ++i) {
      if (done_[i]) {
        const bool lost = sends(schedule_.instructions[i].op) && partners_.partner[i] == kNoId;
        if (lost) error(i, "sends what nobody receives");
        continue;
      }
      error(i, "never ends: deadlock");
      return;
    }
  }

  void leave() {
    Runs runs;
    Runs found;
    std::set<BufferId> replaced;  // homes with a shadow that holds the update
    for (const Residency& residency : schedule_.exit) {
      replaced.insert(schedule_.buffers.at(residency.home).shadow_of);
    }
    bool pending = false;
    for (const Residency& residency : schedule_.exit) {
      const Buffer& home = schedule_.buffers.at(residency.home);
      const bool as_found = replaced.contains(home.id);
      const std::pair key(home.kind, home.unit);
      schedule::symbolic::ReadValue value{&home, 0, home.bytes, false, read_at_exit(home), -1};
      for (const schedule::symbolic::SymbolicOps::Run& run :
           schedule::symbolic::SymbolicOps::runs_of(value)) {
        (as_found ? found : runs)[key].push_back(run);
        CarriedState::State& left = as_found ? result_.after.found : result_.after.state;
        left[key].push_back({run.begin, run.end, run.term, ops_.segments().place_of(home.rank)});
      }
      pending = pending || home.kind == StateKind::kGradient;
    }
    for (const Buffer& buffer : schedule_.buffers) {
      if (!pending || !buffer.persistent || buffer.role != BufferRole::kScalar) continue;
      const std::vector<schedule::symbolic::Part> parts = read_at_exit(buffer);
      if (parts.size() == 1) result_.after.clip = parts.front().term;
    }
    for (auto& [key, list] : runs)
      result_.exit[key] = schedule::symbolic::SymbolicOps::fold(std::move(list));
    for (auto& [key, list] : committed_)
      result_.committed[key] = schedule::symbolic::SymbolicOps::fold(std::move(list));
    for (auto& [key, list] : found)
      result_.found[key] = schedule::symbolic::SymbolicOps::fold(std::move(list));
    result_.losses = ops_.losses();
    std::map<std::int32_t, std::set<Term>> losses;  // of all ranks
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent || buffer.role != BufferRole::kLoss) continue;
      // A home that this schedule did not fill (evaluation has one micro-batch) is no error.
      if (!result_.losses.contains(buffer.microbatch)) continue;
      const std::vector<schedule::symbolic::Part> parts = read_at_exit(buffer);
      if (parts.size() == 1) losses[buffer.microbatch].insert(parts.front().term);
    }
    for (const auto& [microbatch, terms] : losses) {
      symbolic::TermHash all;
      for (const Term& term : terms) all.add(term);
      result_.losses[microbatch] = terms.size() == 1 ? *terms.begin() : all.value();
    }
    for (const InstructionId id : ops_.segments().mixed()) {
      error(id, "finds other values than its pass and the ranks of its group have left");
    }
    result_.norm = ops_.norm();
  }

  std::vector<schedule::symbolic::Part> read_at_exit(const Buffer& buffer) {
    std::string problem;
    std::vector<schedule::symbolic::Part> parts =
        memory_.at(static_cast<std::size_t>(buffer.rank)).read(buffer, 0, buffer.bytes, problem);
    if (!problem.empty() && result_.errors.size() < kMostErrors) {
      result_.errors.push_back("at exit buffer " + std::to_string(buffer.id) + " is in " + problem);
    }
    return parts;
  }

  const Schedule& schedule_;
  const InterpretOptions& options_;
  Partners partners_;
  Draws draws_;
  std::vector<schedule::symbolic::SymbolicMemory> memory_;  // by rank
  std::vector<LaneState> lanes_;                            // by rank, lane
  std::vector<bool> started_;
  std::vector<bool> done_;
  std::vector<Running> running_;
  schedule::symbolic::SymbolicOps ops_;
  Runs committed_;  // of the Commits of all ranks
  Interpretation result_;
};

}  // namespace

CarriedState CarriedState::given_up() const {
  CarriedState left = *this;
  for (const auto& [key, runs] : found) left.state[key] = runs;
  left.found.clear();
  return left;
}

Interpretation interpret(const Schedule& schedule, const InterpretOptions& options) {
  return Machine(schedule, options).run();
}

std::vector<InterpretOptions> adverse_timings(std::uint64_t seed, std::size_t random_count) {
  std::vector<InterpretOptions> timings;
  const auto add = [&](Timing timing, Lane lane) {
    InterpretOptions options;
    options.timing = timing;
    options.lane = lane;
    options.seed = seed + timings.size();
    options.rendezvous = timings.size() % 2 == 1;
    timings.push_back(options);
  };
  add(Timing::kListOrder, Lane::kCompute);
  add(Timing::kOverlap, Lane::kCompute);
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    add(Timing::kRunAhead, static_cast<Lane>(lane));
    add(Timing::kHoldBack, static_cast<Lane>(lane));
  }
  for (std::size_t i = 0; i < random_count; ++i) add(Timing::kRandom, Lane::kCompute);
  return timings;
}

}  // namespace sluice::schedule
