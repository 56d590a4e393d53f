// The reductions of each pass against the cuts that its unit declares.
//
// A pass is a chain of instructions, each followed by the collectives on the lane `inner` of the
// cuts after its last segment. The chain of one rank and micro-batch ends where another pass
// begins. A Recompute has the cuts that something of what it makes needs, and no others.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

// The buffers that each value of a cut lies in.
BufferRole role_of(CutValue value) {
  switch (value) {
    case CutValue::kOutput:
      return BufferRole::kActivation;
    case CutValue::kSaved:
      return BufferRole::kSaved;
    case CutValue::kContext:
      return BufferRole::kWeightContext;
    case CutValue::kWorkspace:
      return BufferRole::kWorkspace;
    case CutValue::kGradient:
    case CutValue::kTiedGradient:
      return BufferRole::kState;
    case CutValue::kLoss:
      return BufferRole::kLoss;
  }
  return BufferRole::kWorkspace;
}

class CutCheck {
 public:
  CutCheck(const Schedule& schedule, Problems& problems)
      : schedule_(schedule), problems_(problems) {}

  void run() {
    for (const Instruction& instruction : schedule_.instructions) {
      if (instruction.microbatch < 0 || instruction.op == Op::kRelease) continue;
      Pass& pass = passes_[{instruction.rank, instruction.microbatch}];
      if (instruction.lane == Lane::kInner) {
        if (!pass.steps.empty()) pass.steps.back().reductions.push_back(&instruction);
      } else if (is_compute(instruction.op)) {
        if (instruction.segments.begin == 0) {
          check(pass);
          pass.steps.clear();
        }
        pass.steps.push_back({&instruction, {}});
      }
    }
    for (const auto& [key, pass] : passes_) check(pass);
  }

 private:
  struct Step {
    const Instruction* run = nullptr;
    std::vector<const Instruction*> reductions;  // after it
  };
  struct Pass {
    std::vector<Step> steps;
  };

  const PassSegments* declared_of(const Instruction& pass) const {
    const auto unit = static_cast<std::size_t>(pass.unit);
    if (pass.unit < 0 || unit >= schedule_.segments.size()) return nullptr;
    const UnitSegments& segments = schedule_.segments[unit];
    switch (pass.op) {
      case Op::kForward:
      case Op::kRecompute:
        return &segments.forward;
      case Op::kLoss:
        return &segments.loss;
      case Op::kBackwardInput:
        return &segments.backward_input;
      case Op::kBackwardWeight:
        return &segments.backward_weight;
      default:
        return nullptr;
    }
  }

  bool writes_output(const Pass& pass) const {
    return std::any_of(pass.steps.begin(), pass.steps.end(), [&](const Step& step) {
      return std::any_of(step.run->writes.begin(), step.run->writes.end(), [&](const Use& use) {
        return schedule_.buffers[use.buffer].role == BufferRole::kActivation;
      });
    });
  }

  void check(const Pass& pass) {
    if (pass.steps.empty() || problems_.full()) return;
    const Instruction& first = *pass.steps.front().run;
    const PassSegments* declared = declared_of(first);
    if (declared == nullptr) return;
    PartMask remade = 0;
    bool makes_output = true;
    if (first.op == Op::kRecompute) {
      const auto unit = static_cast<std::size_t>(first.unit);
      makes_output = writes_output(pass);
      if (unit < schedule_.saved_parts.size()) {
        remade = saved_parts_written(schedule_, first, schedule_.saved_parts[unit]);
      }
    }
    std::int32_t next = 0;
    for (const Step& step : pass.steps) {
      std::vector<Cut> cuts;
      const auto count = static_cast<std::int32_t>(declared->size());
      const std::int32_t end = std::min(step.run->segments.end, count);
      bool early = step.run->segments.begin != next;
      for (std::int32_t segment = next; segment < end; ++segment) {
        early = early || !cuts.empty();  // it runs on after a cut
        for (const Cut& cut : (*declared)[static_cast<std::size_t>(segment)]) {
          if (makes_output || (cut.parts & remade) != 0) cuts.push_back(cut);
        }
      }
      next = end;
      if (!early && matches(step, cuts)) continue;
      problems_.add(describe(*step.run) + " is not followed by the " + std::to_string(cuts.size()) +
                    " cuts that its unit declares");
      return;
    }
    if (next < static_cast<std::int32_t>(declared->size())) {
      problems_.add(describe(*pass.steps.back().run) + " is not the last segment of its pass");
    }
  }

  bool matches(const Step& step, const std::vector<Cut>& cuts) const {
    if (step.reductions.size() != cuts.size()) return false;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const Instruction& reduction = *step.reductions[i];
      const Cut& cut = cuts[i];
      const Dimension among =
          cut.among == CutRanks::kContext ? Dimension::kContext : Dimension::kTensor;
      const auto group = static_cast<std::size_t>(reduction.group);
      if (group >= schedule_.groups.size() || schedule_.groups[group].dimension != among ||
          reduction.reads.size() != 1 || reduction.reduction != cut.kind ||
          reduction.reduced != cut.dtype) {
        return false;
      }
      const Use& use = reduction.reads.front();
      const Buffer& buffer = schedule_.buffers[use.buffer];
      const std::uint64_t base = buffer.role == BufferRole::kSaved ? buffer.first_elem : 0;
      const bool tied = cut.value == CutValue::kTiedGradient;
      const ByteRange range = bytes_of(use, buffer);
      if (buffer.role != role_of(cut.value) || base + range.begin != cut.begin_bytes ||
          range.end - range.begin != cut.bytes() ||
          (cut.value != CutValue::kLoss && tied == (buffer.unit == step.run->unit))) {
        return false;
      }
    }
    return true;
  }

  const Schedule& schedule_;
  Problems& problems_;
  std::map<std::pair<std::int32_t, std::int32_t>, Pass> passes_;  // by rank and micro-batch
};

}  // namespace

void check_cuts(const Schedule& schedule, Problems& problems) {
  if (!schedule.segments.empty()) CutCheck(schedule, problems).run();
}

}  // namespace sluice::schedule::validation
