// The sums of a unit's accumulation groups, while they are reduced to one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// Groups are added by a balanced tree, whose root splits n groups at the largest power of two
// below n. Groups come in order, so the tree is a binary counter: two neighbouring sums of equally
// many groups are added at once, and what remains at the end is added from the last to the first.
// At most log2(n) + 1 sums are alive.
class GroupSums {
 public:
  struct Sum {
    BufferId buffer = kNoId;
    std::int32_t groups = 0;
  };
  // Emits `into` += `from`. level: the position of `into`; last: it is the whole sum now.
  using Fold = std::function<void(BufferId into, BufferId from, std::size_t level, bool last)>;

  std::size_t count() const { return sums_.size(); }
  BufferId top() const { return sums_.back().buffer; }
  // Begins the sum of the next group.
  void push(BufferId buffer) { sums_.push_back({buffer, 1}); }
  // Takes the newest sum away.
  BufferId pop() {
    const BufferId buffer = top();
    sums_.pop_back();
    return buffer;
  }
  // The last group is complete. is_last: no other will come.
  void complete(bool is_last, const Fold& fold);

 private:
  void fold_top(bool last, const Fold& fold);

  std::vector<Sum> sums_;
};

}  // namespace sluice::schedule
