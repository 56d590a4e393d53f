// Carrying in a binary counter: each complete group is a one at the lowest place, and two sums of
// equally many groups make one of twice as many. The sums that remain at the end have decreasing
// powers of two of groups. Adding them from the last one gives each the split that the tree asks
// for: a power of two on the left, and fewer groups on the right.
#include "engine/schedule/compile/group_sums.hpp"

namespace sluice::schedule {

void GroupSums::fold_top(bool last, const Fold& fold) {
  const Sum from = sums_.back();
  sums_.pop_back();
  fold(sums_.back().buffer, from.buffer, sums_.size() - 1, last);
  sums_.back().groups += from.groups;
}

void GroupSums::complete(bool is_last, const Fold& fold) {
  while (sums_.size() > 1) {
    const bool equal = sums_.back().groups == sums_[sums_.size() - 2].groups;
    if (!equal && !is_last) return;
    fold_top(is_last && sums_.size() == 2, fold);
  }
}

}  // namespace sluice::schedule
