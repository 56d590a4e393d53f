// Carries out the collectives and messages of a schedule.
//
// Each use of a Gather or an AllToAll names the other rank, so the runner knows nothing of shards: it
// moves the parts that the lists name, each as one transfer. A part that stays on this rank is
// copied. The members of a group that is smaller than the world exchange within the world's group:
// two ranks meet in one order in all groups that they share, as validate() proves.
#pragma once

#include <string>

#include "collectives/communicator.hpp"
#include "engine/runtime/program.hpp"

namespace sluice::runtime {

// The groups that the lanes use. Each has all ranks of the world, numbered as in the schedule.
struct LaneGroups {
  collectives::Communicator& comm;
  // Of lanes send and receive, which use it at the same time.
  collectives::Communicator& messages;
};

class CollectiveRunner {
 public:
  // The groups must outlive the runner.
  explicit CollectiveRunner(const LaneGroups& groups) : groups_(groups) {}

  // Makes all transfers of the instruction on the calling thread. Throws CommunicationError and
  // TimeoutError. One call at a time for each lane.
  void run(const Program& program, const schedule::Instruction& instruction);
  void abort(const std::string& why) noexcept {
    groups_.comm.abort(why);
    groups_.messages.abort(why);
  }

 private:
  void exchange(const Program& program, const schedule::Instruction& instruction);
  void pass_on(const Program& program, const schedule::Instruction& instruction);

  LaneGroups groups_;
};

}  // namespace sluice::runtime
