// The order in which a host program uses the units of a pager, learned by observation.
//
// A cycle is the list of uses from one begin_cycle() to the next: in training, a forward and a
// backward pass. Two equal cycles in a row make the plan, which predicts later cycles. A cycle that
// deviates follows the plan as far as it can: a skipped use moves on, an unknown one is passed
// over. A cycle that is a beginning of the plan (an evaluation before a training step) leaves it
// alone.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluice::host {

class UseRecord {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  void begin_cycle();
  // A use of the unit begins.
  void note_use(std::uint32_t unit);

  // Number of uses between now and the planned next use of the unit in this cycle; 0: it is the
  // next one. kNever: the plan knows of none, or there is no plan.
  std::uint64_t next_use(std::uint32_t unit) const;
  // The planned rest of the cycle.
  std::span<const std::uint32_t> upcoming() const;

  bool has_plan() const { return !plan_.empty(); }
  std::uint64_t plans() const { return plans_; }
  // Uses that came otherwise than planned.
  std::uint64_t deviations() const { return deviations_; }

 private:
  void adopt(const std::vector<std::uint32_t>& cycle);

  std::vector<std::uint32_t> previous_, current_;
  bool is_overlong_ = false;  // the current cycle is not recorded to its end
  std::vector<std::uint32_t> plan_;
  std::vector<std::vector<std::size_t>> positions_;  // in the plan, ascending, by unit
  std::size_t at_ = 0;                               // of the plan: the next use
  std::uint64_t plans_ = 0;
  std::uint64_t deviations_ = 0;
};

}  // namespace sluice::host
