// The path is walked from the instruction that ends last. An instruction starts when its last dep
// has retired and its lane is free, so the predecessor is the last of these. Two cases of storage
// lanes need care, since several transfers of a lane are in flight:
//
//  - a transfer that retires later than its work ends was held up by an earlier one of its lane,
//    and that one is on the path instead;
//  - a transfer that starts when no dep of its own retires waited for the transfer before it to
//    start, or for a place in the queue, which the end of some earlier transfer gave it.
//
// In the list of a world the path changes ranks: a receive may have waited for its send, and a
// collective for the member that reached it last. So the time in which one rank waits for the passes
// of another counts for whatever the other rank does.
#include "engine/planner/critical_path.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "engine/schedule/simulate/meetings.hpp"

namespace sluice::planner {
namespace {

using schedule::Instruction;
using schedule::InstructionId;
using schedule::InstructionTimes;
using schedule::kNoId;

// Transfers of a lane that are looked through for the one that made room in its queue.
constexpr int kLookback = 64;

class Walk {
 public:
  Walk(const schedule::Schedule& schedule, const std::vector<InstructionTimes>& times)
      : schedule_(schedule),
        times_(times),
        meetings_(schedule),
        before_(times.size(), kNoId),
        waits_for_ranks_(schedule::world_ranks_of(schedule) > 1) {
    std::array<InstructionId, schedule::kLaneCount> none;
    none.fill(kNoId);
    std::vector last(static_cast<std::size_t>(schedule.ranks), none);
    for (const Instruction& instruction : schedule.instructions) {
      InstructionId& of_lane = last[static_cast<std::size_t>(instruction.rank)]
                                   [static_cast<std::size_t>(instruction.lane)];
      before_[instruction.id] = of_lane;
      of_lane = instruction.id;
    }
  }

  CriticalPath path() {
    CriticalPath path;
    InstructionId at = last();
    double now_s = at == kNoId ? 0.0 : times_[at].retired_s;
    // Each step goes to an earlier instruction of the list.
    while (at != kNoId) {
      at = holder(at);
      // In the list of one rank nothing runs while it waits for the message of another.
      if (waits_for_ranks_ && times_[at].retired_s < now_s) {
        path.seconds[static_cast<std::size_t>(Resource::kComm)] += now_s - times_[at].retired_s;
        now_s = times_[at].retired_s;
      }
      const double begin_s = std::min(now_s, times_[at].begin_s);
      const Instruction& instruction = schedule_.instructions[at];
      path.seconds[static_cast<std::size_t>(resource_of(instruction.lane))] += now_s - begin_s;
      path.instructions.push_back(at);
      now_s = begin_s;
      at = predecessor(at);
    }
    return path;
  }

 private:
  static bool same(double a_s, double b_s) { return std::abs(a_s - b_s) <= 1e-9 + 1e-9 * b_s; }
  bool pipelined(InstructionId id) const {
    return schedule::lane_is_pipelined(schedule_.instructions[id].lane);
  }

  InstructionId last() const {
    InstructionId last = kNoId;
    for (InstructionId id = 0; id < times_.size(); ++id) {
      if (last == kNoId || times_[id].retired_s > times_[last].retired_s) last = id;
    }
    return last;
  }

  // The transfer whose end let `id` retire: itself, or an earlier one of its lane.
  InstructionId holder(InstructionId id) const {
    const double retired_s = times_[id].retired_s;
    if (!pipelined(id) || same(times_[id].end_s, retired_s)) return id;
    const InstructionId earlier = ended_at(before_[id], retired_s);
    return earlier == kNoId ? id : earlier;
  }

  // The instruction that `id` waited for last; kNoId: it started at once.
  InstructionId predecessor(InstructionId id) const {
    if (const InstructionId send = meetings_.send_of(id); send != kNoId) {
      return later(send, own_predecessor(id));
    }
    const std::vector<InstructionId>& members = meetings_.members(id);
    if (members.size() < 2) return own_predecessor(id);
    InstructionId latest = kNoId;
    for (const InstructionId member : members) latest = later(latest, own_predecessor(member));
    return latest;
  }

  // The same, of its own rank.
  InstructionId own_predecessor(InstructionId id) const {
    while (id != kNoId && times_[id].begin_s > 0) {
      const InstructionId dep = latest_dep(id);
      const InstructionId before = before_[id];
      if (before == kNoId) return dep;
      if (!pipelined(id)) return later(dep, before);
      const double begin_s = times_[id].begin_s;
      if (dep != kNoId && same(times_[dep].retired_s, begin_s)) return dep;
      if (same(times_[before].begin_s, begin_s)) {
        id = before;  // both waited for the same
        continue;
      }
      const InstructionId freed = ended_at(before, begin_s);
      return freed != kNoId ? freed : later(dep, before);
    }
    return kNoId;
  }

  InstructionId latest_dep(InstructionId id) const {
    const Instruction& instruction = schedule_.instructions[id];
    InstructionId latest = kNoId;
    for (const InstructionId dep : instruction.deps) {
      if (schedule::retires_behind(schedule_.instructions[dep], instruction)) continue;
      latest = later(latest, dep);
    }
    return latest;
  }

  // Whichever retires later; either may be kNoId.
  InstructionId later(InstructionId a, InstructionId b) const {
    if (a == kNoId || b == kNoId) return a == kNoId ? b : a;
    return times_[b].retired_s > times_[a].retired_s ? b : a;
  }

  // The nearest instruction from `id` backwards in its lane whose work ended then.
  InstructionId ended_at(InstructionId id, double end_s) const {
    for (int i = 0; i < kLookback && id != kNoId; ++i, id = before_[id]) {
      if (same(times_[id].end_s, end_s)) return id;
    }
    return kNoId;
  }

  const schedule::Schedule& schedule_;
  const std::vector<InstructionTimes>& times_;
  schedule::Meetings meetings_;
  std::vector<InstructionId> before_;  // the instruction before it in its rank's lane
  bool waits_for_ranks_;
};

}  // namespace

std::string_view resource_name(Resource resource) {
  constexpr std::array<std::string_view, kResourceCount> names{"compute", "h2d",     "d2h",
                                                               "comm",    "storage", "optimizer"};
  return names[static_cast<std::size_t>(resource)];
}

Resource resource_of(schedule::Lane lane) {
  switch (lane) {
    case schedule::Lane::kCompute:
      return Resource::kCompute;
    case schedule::Lane::kH2D:
      return Resource::kH2D;
    case schedule::Lane::kD2H:
      return Resource::kD2H;
    case schedule::Lane::kComm:
    case schedule::Lane::kInner:
    case schedule::Lane::kSend:
    case schedule::Lane::kReceive:
      return Resource::kComm;
    case schedule::Lane::kStorageRead:
    case schedule::Lane::kStorageWrite:
      return Resource::kStorage;
    case schedule::Lane::kOptimizer:
      break;
  }
  return Resource::kOptimizer;
}

double CriticalPath::total_s() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

Resource CriticalPath::longest() const {
  return static_cast<Resource>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

double CriticalPath::share(Resource resource) const {
  const double all_s = total_s();
  return all_s > 0 ? seconds[static_cast<std::size_t>(resource)] / all_s : 0.0;
}

CriticalPath critical_path(const schedule::Schedule& schedule,
                           const std::vector<InstructionTimes>& times) {
  SLUICE_CHECK(times.size() == schedule.instructions.size());
  return Walk(schedule, times).path();
}

}  // namespace sluice::planner
