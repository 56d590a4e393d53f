// Event-driven simulation with fluid sharing, rank by rank.
//
// Between two events every instruction in flight progresses at a constant rate. An event is the
// next end of an instruction in some rank. When instructions start or end, that rank's rates are
// computed anew (share()) and its next event is queued; events of older rates are recognised by
// their epoch and skipped. So the cost is about one queue operation per start or end. Ranks
// influence each other only through messages and collectives, and only the ranks that changed are
// visited.
#include "engine/schedule/simulate/simulate.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "engine/schedule/simulate/meetings.hpp"
#include "engine/schedule/simulate/memory_timeline.hpp"

namespace sluice::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Simulator {
 public:
  Simulator(const Schedule& schedule, const SimulationModel& model, TraceRecorder* trace,
            std::uint32_t step)
      : schedule_(schedule),
        model_(model),
        trace_(trace),
        step_(step),
        meetings_(schedule),
        memory_(schedule, trace),
        ranks_(static_cast<std::size_t>(schedule.ranks)),
        waits_(schedule.instructions.size()),
        times_(schedule.instructions.size()),
        at_front_(schedule.instructions.size(), false) {
    for (const Instruction& instruction : schedule.instructions) {
      rank_of(instruction).lanes[lane_of(instruction)].waiting.push_back(instruction.id);
    }
    std::vector<std::size_t>& begin = next_.begin;
    begin.resize(schedule.instructions.size() + 2);
    each_wait([&](InstructionId before, InstructionId after) {
      ++begin[before + 2];
      ++waits_[after];
    });
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    next_.list.resize(begin.back());
    each_wait([&](InstructionId before, InstructionId after) {
      next_.list[begin[before + 1]++] = after;
    });
    name_tracks();
  }

  // Each event ends the instructions of one rank that are due; settle() then starts their
  // successors. At the end every instruction must have run, or the schedule has a deadlock.
  Simulation run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) touch(rank);
    settle();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      RankState& rank = ranks_[event.rank];
      if (event.epoch != rank.epoch) continue;  // rates have changed since
      now_s_ = event.time_s;
      advance(rank);
      end_finished(event.rank);
      settle();
    }
    for (InstructionId i = 0; i < times_.size(); ++i) {
      SLUICE_CHECK_MSG(times_[i].retired_s >= 0,
                       "simulation stops before instruction " + std::to_string(i) + " (" +
                           std::string(op_name(schedule_.instructions[i].op)) + ")");
    }
    return result();
  }

  std::vector<InstructionTimes> take_times() { return std::move(times_); }

 private:
  // Calls wait(before, after) for all pairs of which the second waits for the first to retire.
  template <typename Wait>
  void each_wait(const Wait& wait) const {
    for (const Instruction& instruction : schedule_.instructions) {
      for (const InstructionId dep : instruction.deps) {
        SLUICE_CHECK(dep < instruction.id);
        if (!retires_behind(schedule_.instructions[dep], instruction)) wait(dep, instruction.id);
      }
      const InstructionId send = meetings_.send_of(instruction.id);
      if (send != kNoId) wait(send, instruction.id);
    }
  }

  // The instructions that wait for i: list[begin[i] .. begin[i + 1]).
  struct Successors {
    std::vector<std::size_t> begin;
    std::vector<InstructionId> list;
  };
  struct InFlight {
    InstructionId id;
    double left_s;  // of cost_s, alone
    double begin_s;
    double rate = 0.0;
    bool ended = false;  // waits to retire after its predecessors
  };
  struct LaneState {
    std::vector<InstructionId> waiting;
    std::size_t started = 0;  // of them
    std::deque<InFlight> in_flight;
    double busy_s = 0.0;
  };
  struct RankState {
    std::array<LaneState, kLaneCount> lanes;
    double advanced_to_s = 0.0;
    std::uint64_t epoch = 0;
    bool touched = false;
  };
  struct Event {
    double time_s;
    std::size_t rank;
    std::uint64_t epoch;
    bool operator<(const Event& other) const {  // the top of the queue is the earliest
      return std::tuple(time_s, rank) > std::tuple(other.time_s, other.rank);
    }
  };

  RankState& rank_of(const Instruction& instruction) {
    return ranks_[static_cast<std::size_t>(instruction.rank)];
  }
  static std::size_t lane_of(const Instruction& instruction) {
    return static_cast<std::size_t>(instruction.lane);
  }

  // One track for each lane of each rank.
  void name_tracks() {
    if (trace_ == nullptr) return;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::string prefix =
          ranks_.size() == 1 ? std::string() : "rank" + std::to_string(rank) + "/";
      for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
        tracks_.push_back(trace_->intern(prefix + std::string(lane_name(static_cast<Lane>(lane)))));
      }
    }
  }

  // Books the work done since the rank's rates last changed.
  void advance(RankState& rank) {
    const double elapsed_s = now_s_ - rank.advanced_to_s;
    rank.advanced_to_s = now_s_;
    if (elapsed_s <= 0) return;
    for (LaneState& lane : rank.lanes) {
      bool busy = false;
      for (InFlight& work : lane.in_flight) {
        busy = busy || !work.ended;
        work.left_s = std::max(0.0, work.left_s - elapsed_s * work.rate);
      }
      if (busy) lane.busy_s += elapsed_s;
    }
  }

  // Queues a rank for settle(), once.
  void touch(std::size_t rank) {
    if (ranks_[rank].touched) return;
    ranks_[rank].touched = true;
    touched_.push_back(rank);
  }

  // Ends the instructions without work left; a lane retires in order.
  void end_finished(std::size_t rank_index) {
    touch(rank_index);
    for (LaneState& lane : ranks_[rank_index].lanes) {
      for (InFlight& work : lane.in_flight) {
        // The most that rounding leaves; the last term is the resolution of the clock itself.
        const double slack_s =
            1e-12 + 1e-9 * schedule_.instructions[work.id].cost_s + 1e-15 * now_s_;
        if (work.ended || work.left_s > slack_s) continue;
        work.ended = true;
        times_[work.id].end_s = now_s_;
        record(work);
      }
      while (!lane.in_flight.empty() && lane.in_flight.front().ended) {
        const InstructionId id = lane.in_flight.front().id;
        lane.in_flight.pop_front();
        times_[id].retired_s = now_s_;
        memory_.end(schedule_.instructions[id], now_s_);
        for (std::size_t next = next_.begin[id]; next < next_.begin[id + 1]; ++next) {
          const InstructionId after = next_.list[next];
          --waits_[after];
          touch(static_cast<std::size_t>(schedule_.instructions[after].rank));
        }
      }
    }
  }

  // Starts all instructions that may start now, in every rank that has changed. Instructions
  // without cost end at once and may let others start.
  void settle() {
    while (!touched_.empty()) {
      const std::size_t rank = touched_.back();
      touched_.pop_back();
      ranks_[rank].touched = false;
      advance(ranks_[rank]);
      bool free_of_cost = false;
      for (LaneState& lane : ranks_[rank].lanes) free_of_cost = start_ready(lane) || free_of_cost;
      if (free_of_cost) end_finished(rank);
      if (!ranks_[rank].touched) share(rank);
    }
  }

  // Starts instructions from the front of the lane as far as depth, deps and meetings allow.
  // Returns whether one of them has no cost and so ends at once.
  bool start_ready(LaneState& lane) {
    bool free_of_cost = false;
    while (lane.started < lane.waiting.size()) {
      const Instruction& next = schedule_.instructions[lane.waiting[lane.started]];
      const std::ptrdiff_t depth =
          lane_is_pipelined(next.lane) ? std::max(1u, model_.storage_depth) : 1;
      const auto under_way = std::count_if(lane.in_flight.begin(), lane.in_flight.end(),
                                           [](const InFlight& work) { return !work.ended; });
      if (under_way >= depth || waits_[next.id] != 0) break;
      if (!meeting_complete(next.id)) break;
      ++lane.started;
      lane.in_flight.push_back({next.id, next.cost_s, now_s_});
      times_[next.id].begin_s = now_s_;
      memory_.start(next, now_s_);
      free_of_cost = free_of_cost || next.cost_s <= 0.0;
    }
    return free_of_cost;
  }

  // A collective starts when each member is the next of its lane and has its deps.
  bool meeting_complete(InstructionId id) {
    const std::vector<InstructionId>& members = meetings_.members(id);
    if (members.size() <= 1) return true;
    const bool news = !at_front_[id];
    at_front_[id] = true;
    const bool all = std::all_of(members.begin(), members.end(),
                                 [&](InstructionId member) { return at_front_[member]; });
    if (all && news) {
      for (const InstructionId member : members) {
        touch(static_cast<std::size_t>(schedule_.instructions[member].rank));
      }
    }
    return all;
  }

  // The share of its lane's bandwidth that a transfer takes when alone. It is above one if the lane
  // was measured slower than this transfer.
  double storage_demand(const Instruction& instruction) const {
    const double bandwidth = instruction.lane == Lane::kStorageRead
                                 ? model_.storage_read_bytes_per_s
                                 : model_.storage_write_bytes_per_s;
    if (bandwidth <= 0 || instruction.cost_s <= 0) return 1.0;
    return static_cast<double>(instruction.bytes) / bandwidth / instruction.cost_s;
  }

  // Sets the rank's rates and queues the event of its next end.
  void share(std::size_t rank_index) {
    RankState& rank = ranks_[rank_index];
    double cores = 0.0;
    std::array<double, kLaneCount> storage{};  // sums of demands
    double transfers = 0.0;
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      bool active = false;
      for (const InFlight& work : rank.lanes[lane].in_flight) {
        if (work.ended) continue;
        active = true;
        if (lane_is_pipelined(static_cast<Lane>(lane))) {
          storage[lane] += storage_demand(schedule_.instructions[work.id]);
          transfers += 1;
        }
      }
      if (active) cores += model_.cores_used[lane];
    }
    const double core_rate = model_.cores > 0 && cores > model_.cores ? model_.cores / cores : 1.0;
    // A queue of transfers gains less than its length. Each lane stays within its own bandwidth,
    // and both together within the duplex bandwidth.
    const double queue_rate =
        transfers > 1 ? (1 + (transfers - 1) * model_.storage_overlap) / transfers : 1.0;
    const auto demand_of = [&](Lane lane) {
      return std::min(1.0, storage[static_cast<std::size_t>(lane)] * queue_rate);
    };
    const double reads = demand_of(Lane::kStorageRead);
    const double writes = demand_of(Lane::kStorageWrite);
    const bool duplex = reads > 0 && writes > 0 && reads + writes > model_.storage_duplex;
    const double duplex_rate = duplex ? model_.storage_duplex / (reads + writes) : 1.0;
    double next_end_s = kNever;
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      double rate = 1.0;
      if (model_.cores_used[lane] > 0) rate = core_rate;
      if (lane_is_pipelined(static_cast<Lane>(lane))) {
        rate =
            std::min(rate, duplex_rate * std::min(queue_rate, 1.0 / std::max(1.0, storage[lane])));
      }
      for (InFlight& work : rank.lanes[lane].in_flight) {
        work.rate = rate;
        if (!work.ended) next_end_s = std::min(next_end_s, now_s_ + work.left_s / rate);
      }
    }
    ++rank.epoch;
    if (next_end_s < kNever) events_.push({next_end_s, rank_index, rank.epoch});
  }

  // Writes a span to the trace; Releases take no time and are left out.
  void record(const InFlight& work) {
    const Instruction& instruction = schedule_.instructions[work.id];
    if (trace_ == nullptr || instruction.op == Op::kRelease) return;
    trace_->span(
        {tracks_[static_cast<std::size_t>(instruction.rank) * kLaneCount + lane_of(instruction)],
         trace_->intern(op_name(instruction.op)), trace_ns(work.begin_s), trace_ns(now_s_),
         instruction.unit, instruction.microbatch, instruction.bytes, step_});
  }

  // The stall is that of the rank with the idlest compute lane.
  Simulation result() const {
    Simulation simulation;
    simulation.total_s = now_s_;
    for (const RankState& rank : ranks_) {
      std::array<double, kLaneCount> busy{};
      for (std::size_t lane = 0; lane < kLaneCount; ++lane) busy[lane] = rank.lanes[lane].busy_s;
      simulation.busy_s.push_back(busy);
      simulation.compute_stall_s = std::max(
          simulation.compute_stall_s, now_s_ - busy[static_cast<std::size_t>(Lane::kCompute)]);
    }
    simulation.live_peak_bytes = memory_.peak_bytes();
    return simulation;
  }

  const Schedule& schedule_;
  const SimulationModel& model_;
  TraceRecorder* trace_;
  std::uint32_t step_;
  Meetings meetings_;
  MemoryTimeline memory_;
  std::vector<RankState> ranks_;
  std::vector<std::uint32_t> waits_;  // deps and messages not done, by instruction
  Successors next_;
  std::vector<InstructionTimes> times_;  // by instruction
  std::vector<bool> at_front_;           // a collective that has reached the front of its lane
  std::vector<std::size_t> touched_;
  std::vector<TraceId> tracks_;
  std::priority_queue<Event> events_;
  double now_s_ = 0.0;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const SimulationModel& model, TraceRecorder* trace,
                    std::uint32_t step, std::vector<InstructionTimes>* times) {
  Simulator simulator(schedule, model, trace, step);
  Simulation simulation = simulator.run();
  if (times != nullptr) *times = simulator.take_times();
  return simulation;
}

// Transfers in flight together move at most their lane's bandwidth, and share(): no instruction
// runs faster than alone.
double busiest_lane_s(const Schedule& schedule, const SimulationModel& model) {
  SLUICE_CHECK(schedule.ranks == 1);
  std::array<double, kLaneCount> seconds{};
  const auto bandwidth_of = [&](Lane lane) {
    if (lane == Lane::kStorageRead) return model.storage_read_bytes_per_s;
    return lane == Lane::kStorageWrite ? model.storage_write_bytes_per_s : 0.0;
  };
  for (const Instruction& instruction : schedule.instructions) {
    const double bandwidth = bandwidth_of(instruction.lane);
    seconds[static_cast<std::size_t>(instruction.lane)] +=
        bandwidth > 0 ? static_cast<double>(instruction.bytes) / bandwidth : instruction.cost_s;
  }
  const double both = seconds[static_cast<std::size_t>(Lane::kStorageRead)] +
                      seconds[static_cast<std::size_t>(Lane::kStorageWrite)];
  return std::max(*std::max_element(seconds.begin(), seconds.end()), both / model.storage_duplex);
}

}  // namespace sluice::schedule
