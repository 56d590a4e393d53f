// The table counts each home once, and activations at their own peak. The rest of a tier's peak is
// staging: windows of weights and gradients, rings of pieces, workspaces, and the rounding to
// pages. Break-even splits every lane's work into a part that grows with the tokens and a part that
// does not, and solves for equality.
#include "engine/planner/outlook.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/units.hpp"

namespace sluice::planner {
namespace {

using schedule::Instruction;
using schedule::Op;

constexpr double kSecondsPerDay = 86400;
constexpr double kTerabyte = 1e12;

std::uint64_t at(const TierBytes& bytes, Tier tier) {
  return bytes[static_cast<std::size_t>(tier)];
}

bool is_activation(const schedule::Buffer& buffer) {
  return buffer.role == schedule::BufferRole::kActivation ||
         buffer.role == schedule::BufferRole::kSaved;
}

std::string transfer(const char* verb, std::uint64_t bytes, const char* way) {
  return std::string(verb) + " " + format_bytes(bytes) + " " + way;
}

// Bytes of model state of these kinds that one step moves in a lane.
std::uint64_t state_bytes_moved(const Plan& plan, schedule::Lane lane,
                                std::initializer_list<StateKind> kinds) {
  const schedule::Schedule& training = plan.training();
  std::uint64_t bytes = 0;
  for (const Instruction& instruction : training.instructions) {
    if (instruction.lane != lane || instruction.bytes == 0) continue;
    const auto& uses = instruction.reads.empty() ? instruction.writes : instruction.reads;
    if (uses.empty()) continue;
    const schedule::Buffer& buffer = training.buffers[uses.front().buffer];
    const bool state = buffer.role == schedule::BufferRole::kState;
    if (state && std::find(kinds.begin(), kinds.end(), buffer.kind) != kinds.end()) {
      bytes += instruction.bytes;
    }
  }
  return plan.step_share(bytes);
}

std::string weights_why(const Plan& plan) {
  const std::uint64_t up = state_bytes_moved(plan, schedule::Lane::kH2D, {StateKind::kWeight});
  if (up == 0) return "resident";
  const auto weight = static_cast<std::size_t>(StateKind::kWeight);
  const bool resident =
      at(plan.kind_bytes[weight], Tier::kDevice) == plan.state_bytes_of(StateKind::kWeight);
  return resident ? transfer("resident; updates send", up, "up a step")
                  : transfer("fetched,", up, "a step");
}

std::string gradients_why(const Plan& plan) {
  const std::uint64_t down = state_bytes_moved(plan, schedule::Lane::kD2H, {StateKind::kGradient});
  return down == 0 ? "stay on the device" : transfer("sent down,", down, "a step");
}

std::string optimizer_why(const Plan& plan) {
  const auto moved = [&](schedule::Lane lane) {
    return state_bytes_moved(plan, lane,
                             {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2});
  };
  const std::uint64_t read = moved(schedule::Lane::kStorageRead);
  const std::uint64_t written = moved(schedule::Lane::kStorageWrite);
  if (read > 0 || written > 0) {
    return "storage reads " + format_bytes(read) + " and writes " + format_bytes(written) +
           " a step";
  }
  return at(plan.peak_bytes, Tier::kDevice) > 0 &&
                 plan.options.placement.optimizer ==
                     std::vector<Tier>(plan.options.placement.optimizer.size(), Tier::kDevice)
             ? "updated on the device"
             : "updated by the host, in place";
}

std::string activations_why(const Plan& plan) {
  const std::uint64_t down = plan.step_share(plan.activation_bytes.download);
  std::string why = plan.recompute.units == 0 ? "kept" : "recompute: " + plan.recompute.policy;
  if (down > 0) why += (why.empty() ? "" : ", ") + transfer("spilled,", down, "down a step");
  return why;
}

TierBytes home_bytes_of(const Plan& plan, std::initializer_list<StateKind> kinds) {
  TierBytes sum{};
  for (const StateKind kind : kinds) {
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      sum[tier] += plan.kind_bytes[static_cast<std::size_t>(kind)][tier];
    }
  }
  return sum;
}

// The seconds of a resource, as functions of the tokens: fixed + per_step.
struct Work {
  double fixed_s = 0;
  double scaled_s = 0;  // with the present tokens; grows with them
};

bool is_pass(Op op) {
  return op == Op::kForward || op == Op::kRecompute || op == Op::kLoss ||
         op == Op::kBackwardInput || op == Op::kBackwardWeight;
}

bool moves_activation(const schedule::Schedule& schedule, const Instruction& instruction) {
  if (instruction.op == Op::kSpillActivation || instruction.op == Op::kFetchActivation) return true;
  const auto touches = [&](const schedule::Uses& uses) {
    return std::any_of(uses.begin(), uses.end(), [&](const schedule::Use& use) {
      return is_activation(schedule.buffers[use.buffer]);
    });
  };
  return touches(instruction.reads) || touches(instruction.writes);
}

// Storage works at the rates of many transfers; both directions share its duplex rate.
double storage_s(double read_bytes, double written_bytes,
                 const schedule::SimulationModel& machine) {
  const auto alone = [](double bytes, double rate) { return rate > 0 ? bytes / rate : 0.0; };
  const double read_s = alone(read_bytes, machine.storage_read_bytes_per_s);
  const double write_s = alone(written_bytes, machine.storage_write_bytes_per_s);
  return std::max({read_s, write_s, (read_s + write_s) / machine.storage_duplex});
}

std::array<Work, kResourceCount> work_of(const Plan& plan,
                                         const schedule::SimulationModel& machine) {
  std::array<Work, kResourceCount> work{};
  const schedule::Schedule& training = plan.training();
  for (const Instruction& instruction : training.instructions) {
    const Resource resource = resource_of(instruction.lane);
    if (resource == Resource::kStorage) continue;  // below: its transfers overlap
    const bool grows = resource == Resource::kCompute ? is_pass(instruction.op)
                                                      : moves_activation(training, instruction);
    Work& of = work[static_cast<std::size_t>(resource)];
    (grows ? of.scaled_s : of.fixed_s) += instruction.cost_s;
  }
  const auto read = static_cast<double>(plan.step_bytes.storage_read);
  const auto written = static_cast<double>(plan.step_bytes.storage_write);
  const auto spilled_read = static_cast<double>(plan.activation_bytes.storage_read);
  const auto spilled_written = static_cast<double>(plan.activation_bytes.storage_write);
  work[static_cast<std::size_t>(Resource::kStorage)] = {
      storage_s(read - spilled_read, written - spilled_written, machine),
      storage_s(spilled_read, spilled_written, machine)};
  return work;
}

}  // namespace

std::vector<MemoryRow> memory_rows(const Plan& plan) {
  std::vector<MemoryRow> rows{
      {"weights", home_bytes_of(plan, {StateKind::kWeight}), weights_why(plan)},
      {"gradients", home_bytes_of(plan, {StateKind::kGradient}), gradients_why(plan)},
      {"optimizer",
       home_bytes_of(plan, {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}),
       optimizer_why(plan)},
      {"activations", plan.activation_peak_bytes, activations_why(plan)}};
  // Activations peak when other things may not, so they may leave less than nothing for staging.
  MemoryRow staging{"staging", plan.peak_bytes, "windows, rings of pieces, workspaces, rounding"};
  for (MemoryRow& row : rows) {
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      row.bytes[tier] = std::min(row.bytes[tier], staging.bytes[tier]);
      staging.bytes[tier] -= row.bytes[tier];
    }
  }
  rows.push_back(std::move(staging));
  return rows;
}

TierBytes activation_peak_bytes(const schedule::Schedule& training,
                                const std::vector<schedule::InstructionTimes>& times) {
  struct Change {
    double time_s;
    bool born;
    std::size_t tier;
    std::uint64_t bytes;
  };
  std::vector<Change> changes;
  std::vector<bool> born(training.buffers.size(), false);
  for (const Instruction& instruction : training.instructions) {
    const bool release = instruction.op == Op::kRelease;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        const schedule::Buffer& buffer = training.buffers[use.buffer];
        if (!is_activation(buffer) || (!release && born[use.buffer])) continue;
        born[use.buffer] = true;
        changes.push_back(
            {release ? times[instruction.id].retired_s : times[instruction.id].begin_s, !release,
             static_cast<std::size_t>(buffer.tier), buffer.bytes});
      }
    }
  }
  // Deaths come before births of the same moment.
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::pair(a.time_s, a.born) < std::pair(b.time_s, b.born);
  });
  TierBytes live{};
  TierBytes peak{};
  for (const Change& change : changes) {
    std::uint64_t& bytes = live[change.tier];
    bytes = change.born ? bytes + change.bytes : bytes - std::min(bytes, change.bytes);
    peak[change.tier] = std::max(peak[change.tier], bytes);
  }
  return peak;
}

std::optional<BreakEven> break_even(const Plan& plan, double tokens_per_step,
                                    const schedule::SimulationModel& machine) {
  const std::array<Work, kResourceCount> work = work_of(plan, machine);
  const Work& passes = work[static_cast<std::size_t>(Resource::kCompute)];
  BreakEven found;
  for (const Resource resource : {Resource::kH2D, Resource::kD2H, Resource::kComm,
                                  Resource::kStorage, Resource::kOptimizer}) {
    const Work& other = work[static_cast<std::size_t>(resource)];
    const double needed_s = other.fixed_s - passes.fixed_s;
    const double gained_s = passes.scaled_s - other.scaled_s;  // by the present tokens
    if (needed_s <= 0 && gained_s >= 0) continue;
    if (gained_s <= 0) return std::nullopt;
    const double tokens = tokens_per_step * needed_s / gained_s;
    if (tokens > found.tokens) found = {tokens, resource};
  }
  return found;
}

Wear wear(std::uint64_t written_bytes_per_step, double step_s, double storage_tbw) {
  Wear wear;
  if (step_s <= 0) return wear;
  wear.bytes_per_day = static_cast<double>(written_bytes_per_step) / step_s * kSecondsPerDay;
  if (wear.bytes_per_day > 0 && storage_tbw > 0) {
    wear.days_to_endurance = storage_tbw * kTerabyte / wear.bytes_per_day;
  }
  return wear;
}

// The lists of instructions and the lanes are those of one rank; the step and its path are the world's.
std::vector<std::string> search_lines(const Plan& plan) {
  std::vector<std::string> lines;
  const std::string of_rank =
      plan.is_alone() ? "" : " of rank " + std::to_string(plan.world_rank());
  const std::string of_steps =
      plan.updates() == 1 ? "" : " for " + std::to_string(plan.updates()) + " steps";
  lines.push_back("chosen: a step of " + format_seconds(plan.step_s()) + ", " +
                  std::to_string(plan.training().instructions.size()) + " instructions" + of_rank +
                  of_steps);
  std::string path = "critical path:";
  for (std::size_t i = 0; i < kResourceCount; ++i) {
    if (plan.critical_path.seconds[i] <= 0) continue;
    path += " " + std::string(resource_name(static_cast<Resource>(i))) + " " +
            format_seconds(plan.step_share(plan.critical_path.seconds[i]));
  }
  lines.push_back(path);
  std::string busy = "lanes" + of_rank + " at work:";
  for (std::size_t lane = 0; lane < schedule::kLaneCount; ++lane) {
    const double seconds = plan.simulation.busy_s.front()[lane];
    if (seconds <= 0) continue;
    busy += " " + std::string(schedule::lane_name(static_cast<schedule::Lane>(lane))) + " " +
            format_seconds(plan.step_share(seconds));
  }
  lines.push_back(busy);
  for (const Tried& tried : plan.tried) {
    lines.push_back(tried.what + ": at least " + format_seconds(tried.bound_s) + ", " +
                    (tried.best_s ? "tried: " + format_seconds(*tried.best_s)
                                  : "no plan tried fits, or none could be faster"));
  }
  return lines;
}

}  // namespace sluice::planner
