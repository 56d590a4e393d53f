// Part of validate: the order around Commits, which no buffer states. One walk over the list: a
// Commit comes after all storage writes before it.
#include <map>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

class ControlCheck {
 public:
  ControlCheck(const Schedule& schedule, const HappensBefore& order, Problems& problems)
      : schedule_(schedule), order_(order), problems_(problems) {}

  void run() {
    for (const Instruction& instruction : schedule_.instructions) {
      if (instruction.op != Op::kRelease) control(instruction);
    }
  }

 private:
  void control(const Instruction& instruction) {
    const std::int32_t rank = instruction.rank;
    if (instruction.op == Op::kStorageWrite) last_storage_write_[rank] = instruction.id;
    if (instruction.op == Op::kCommit && last_storage_write_.contains(rank) &&
        !order_.done_before(last_storage_write_[rank], instruction.id)) {
      problems_.add(describe(instruction) + " may come before " +
                    describe(schedule_.instructions[last_storage_write_[rank]]));
    }
  }

  const Schedule& schedule_;
  const HappensBefore& order_;
  Problems& problems_;
  std::map<std::int32_t, InstructionId> last_storage_write_;  // by rank
};

}  // namespace

void check_control(const Schedule& schedule, const HappensBefore& order, Problems& problems) {
  ControlCheck(schedule, order, problems).run();
}

}  // namespace sluice::schedule::validation
