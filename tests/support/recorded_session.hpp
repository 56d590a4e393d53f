// The results of a few steps of a planned session, kept to the bit; for comparisons of backends.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/planned_session.hpp"

namespace sluice::testing {

struct SessionRecord {
  std::vector<double> losses;       // of each step, then of an evaluation
  std::vector<std::uint64_t> bits;  // of losses and norms
  std::string weights_hash;
  schedule::LinkBytes moved;  // by the last step
  bool operator==(const SessionRecord& other) const {
    return bits == other.bits && weights_hash == other.weights_hash;
  }
};

inline SessionRecord record_steps(PlannedSession& session, int steps) {
  SessionRecord record;
  for (int step = 0; step < steps; ++step) {
    const train::StepOutcome outcome = session.step(step);
    record.losses.push_back(outcome.loss);
    record.bits.push_back(std::bit_cast<std::uint64_t>(outcome.loss));
    record.bits.push_back(std::bit_cast<std::uint64_t>(outcome.grad_norm));
    record.moved = outcome.moved;
  }
  record.losses.push_back(session.evaluate());
  record.bits.push_back(std::bit_cast<std::uint64_t>(record.losses.back()));
  record.weights_hash = session.session().state().weights_hash();
  return record;
}

}  // namespace sluice::testing
