// Schedules interpreted one after another, each on the state that the one before has left: whole
// runs as terms.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::testing {

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Makes deps and places anew, for a test that changed the instructions.
inline void relink(schedule::Schedule& schedule) {
  for (schedule::Instruction& instruction : schedule.instructions) instruction.deps.clear();
  schedule::link(schedule);
  schedule::pack(schedule);
}

class StepChain {
 public:
  explicit StepChain(schedule::InterpretOptions timing = {}) : timing_(timing) {}

  // accepted: the clip factor that the pass computes is one.
  void pass(const schedule::Schedule& schedule, std::uint64_t step, bool accepted = false) {
    ASSERT_EQ(joined(schedule::validate(schedule)), "");
    schedule::InterpretOptions options = timing_;
    options.before = started_ ? &left_ : nullptr;
    options.step = step;
    options.clip_accepted = accepted;
    schedule::Interpretation values = schedule::interpret(schedule, options);
    ASSERT_EQ(joined(values.errors), "");
    if (values.norm) norms.push_back(*values.norm);
    if (!values.losses.empty()) losses.push_back(values.losses);
    exit = values.exit;
    found = values.found;
    left_ = std::move(values.after);
    started_ = true;
  }

  // The results of the last pass are dropped; the state that it found stays.
  void give_up() { left_ = left_.given_up(); }

  // The state after the last pass.
  const schedule::CarriedState& left() const { return left_; }

  using State = std::map<std::pair<StateKind, std::int32_t>, schedule::Term>;
  std::vector<schedule::Term> norms;
  std::vector<std::map<std::int32_t, schedule::Term>> losses;
  State exit;   // of the last pass
  State found;  // likewise

 private:
  schedule::InterpretOptions timing_;
  schedule::CarriedState left_;
  bool started_ = false;
};

// Gradients that wait for a verdict are no state between steps.
inline StepChain::State without_gradients(StepChain::State state) {
  std::erase_if(state, [](const auto& at) { return at.first.first == StateKind::kGradient; });
  return state;
}

}  // namespace sluice::testing
