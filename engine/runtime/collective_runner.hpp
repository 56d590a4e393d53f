// Carries out the collectives of a schedule.
//
// Each use of a Gather or an AllToAll names the other rank, so the runner knows nothing of shards: it
// moves the parts that the lists name, each as one transfer. A part that stays on this rank is
// copied.
#pragma once

#include <string>

#include "collectives/communicator.hpp"
#include "engine/runtime/program.hpp"

namespace sluice::runtime {

class CollectiveRunner {
 public:
  // ranks: the world's data-parallel group, whose ranks are numbered as in the schedule. It must
  // outlive the runner.
  explicit CollectiveRunner(collectives::Communicator& ranks) : ranks_(ranks) {}

  // Makes all transfers of the instruction on the calling thread. Throws CommunicationError and
  // TimeoutError. One call at a time, and on all ranks in the same order.
  void run(const Program& program, const schedule::Instruction& instruction);
  void abort(const std::string& why) noexcept { ranks_.abort(why); }

 private:
  collectives::Communicator& ranks_;
};

}  // namespace sluice::runtime
