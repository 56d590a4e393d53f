// The search tree of skyline_search.hpp.
//
// A node is a set of unplaced boxes, each with its floor: the lowest offset that the placed boxes
// leave it. solve() first bounds the node (bound), and splits it into runs of positions that share
// no box, which are solved one by one. Otherwise place_one() tries each candidate on its floor.
// After a choice fails, its box counts as passed over, and the node is bounded again: that often
// ends it. Nodes live in a stack of frames, whose vectors are reused. work_ counts looks at
// positions, so that the budget means the same on every machine.
#include "allocator/packing/skyline_search.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <iterator>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/error.hpp"

namespace sluice::packing {
namespace {

using Units = SkylineUnits;
using Index = std::uint32_t;

constexpr Units kNothing = 1 << 30;  // above every height

struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Keys of sub-problems without a solution. Of keys that share a slot, the latest is kept.
class Failures {
 public:
  explicit Failures(std::uint64_t work_budget)
      : keys_(std::bit_ceil(std::clamp<std::uint64_t>(work_budget / 1024, 1u << 10, 1u << 18))) {}
  bool contains(std::uint64_t key) const { return keys_[place(key)] == key; }
  void insert(std::uint64_t key) { keys_[place(key)] = key; }

 private:
  std::size_t place(std::uint64_t key) const { return key & (keys_.size() - 1); }
  std::vector<std::uint64_t> keys_;
};

// The boxes of a sub-problem that are not placed yet, in the order of the problem.
struct Unplaced {
  std::vector<Index> box;
  std::vector<Units> floor;  // the lowest offset that the placed boxes leave the box
  // Set by SkylineSearch::Impl::bound: a lower bound on the box's offset, and whether a later box
  // must lift it off its floor.
  std::vector<Units> least;
  std::vector<std::uint8_t> passed_over;

  std::size_t count() const { return box.size(); }
  void clear() {
    box.clear();
    floor.clear();
  }
  void add(Index index, Units offset) {
    box.push_back(index);
    floor.push_back(offset);
  }
};

// The box placed last. Later ones lie higher, or equally high and later in the order.
struct Last {
  Units offset = 0;
  std::optional<Index> box;
};

}  // namespace

class SkylineSearch::Impl {
 public:
  Impl(const SkylineProblem& problem, std::uint64_t work_budget)
      : problem_(problem),
        work_budget_(work_budget),
        failures_(work_budget),
        placed_(problem.boxes.size()),
        offsets_(problem.boxes.size()),
        obstacles_(problem.boxes.size()) {
    alike_.twin.resize(problem.boxes.size());
    alike_.group_of.resize(problem.boxes.size());
    const auto positions = static_cast<std::size_t>(problem.position_count);
    for (auto* heights : {&scratch_.lowest, &scratch_.second, &scratch_.stacked})
      heights->resize(positions);
    scratch_.lowest_owner.resize(positions);
    for (Index i = 0; i < problem.boxes.size(); ++i) {
      SLUICE_CHECK(problem.boxes[i].size > 0 && problem.boxes[i].size < kNothing);
      if (is_fixed(i)) {
        fixed_.push_back(i);
        offsets_[i] = box(i).fixed_offset;
      }
    }
    std::stable_sort(fixed_.begin(), fixed_.end(),
                     [&](Index a, Index b) { return offsets_[a] > offsets_[b]; });
    for (Index i = 0; i < problem.boxes.size(); ++i) {
      if (is_fixed(i)) continue;
      for (auto f = fixed_.rbegin(); f != fixed_.rend(); ++f) {
        if (meet(box(i), box(*f))) obstacles_[i].push_back(*f);
      }
      work_ += fixed_.size();
    }
    find_mates();
    work_ += problem.boxes.size();
  }

  SkylineOutcome run() {
    Unplaced& all = frames_.emplace_back();
    used_ = 1;
    for (Index i = 0; i < problem_.boxes.size(); ++i) {
      if (!is_fixed(i)) all.add(i, lifted(i, 0));
    }
    if (solve(0, {0, problem_.position_count}, {})) return SkylineOutcome::kPacked;
    return exhausted() ? SkylineOutcome::kGaveUp : SkylineOutcome::kImpossible;
  }
  const std::vector<Units>& offsets() const { return offsets_; }
  std::uint64_t work() const { return work_; }

 private:
  const SkylineBox& box(Index i) const { return problem_.boxes[i]; }
  bool is_fixed(Index i) const { return box(i).fixed_offset >= 0; }
  bool exhausted() const { return work_ >= work_budget_; }

  static bool meet(const SkylineBox& a, const SkylineBox& b) {
    return a.lower < b.upper && b.lower < a.upper;
  }

  // Groups the boxes of equal lifetime (mates), and links those that also have equal size (twins).
  void find_mates() {
    std::vector<Index> order;
    for (Index i = 0; i < problem_.boxes.size(); ++i) {
      if (!is_fixed(i)) order.push_back(i);
    }
    const auto lifetime = [&](Index i) { return std::tie(box(i).lower, box(i).upper); };
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return lifetime(a) < lifetime(b); });
    for (auto begin = order.begin(); begin != order.end();) {
      const auto end = std::find_if(begin, order.end(),
                                    [&](Index i) { return lifetime(i) != lifetime(*begin); });
      for (auto one = begin; one != end; ++one) {
        alike_.group_of[*one] = alike_.groups.size();
        const auto twin = std::find_if(std::reverse_iterator(one), std::reverse_iterator(begin),
                                       [&](Index i) { return box(i).size == box(*one).size; });
        if (twin != std::reverse_iterator(begin)) alike_.twin[*one] = *twin;
      }
      alike_.groups.emplace_back(begin, end);
      begin = end;
    }
  }

  // The lowest offset at or above `offset` that no fixed box blocks.
  Units lifted(Index i, Units offset) const {
    for (const Index f : obstacles_[i]) {
      if (offset + box(i).size <= offsets_[f]) break;
      offset = std::max(offset, offsets_[f] + box(f).size);
    }
    return offset;
  }

  // Whether box i may not be placed on its floor. There it would come before the box placed last,
  // or before its twin, or right above a box of equal lifetime, with which it could change places.
  bool passed_over(Index i, Units floor, const Last& last) const {
    if (last.box && (floor < last.offset || (floor == last.offset && i <= *last.box))) return true;
    if (alike_.twin[i] && placed_[*alike_.twin[i]] == 0) return true;
    const std::vector<Index>& mates = alike_.groups[alike_.group_of[i]];
    return std::any_of(mates.rbegin(), mates.rend(), [&](Index mate) {
      return mate > i && placed_[mate] != 0 && offsets_[mate] + box(mate).size == floor;
    });
  }

  // Calls visit(p) for each position of box i within the range.
  template <typename Visit>
  void each_position(Index i, Range range, const Visit& visit) {
    const auto begin = static_cast<std::size_t>(std::max(box(i).lower, range.begin));
    const auto end = static_cast<std::size_t>(std::min(box(i).upper, range.end));
    for (std::size_t p = begin; p < end; ++p) visit(p);
  }

  // Returns false if the boxes cannot all be placed. Sets `least` and `passed_over`.
  bool bound(Unplaced& boxes, Range range, const Last& last) {
    boxes.least.resize(boxes.count());
    boxes.passed_over.resize(boxes.count());
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      const Index i = boxes.box[k];
      boxes.least[k] = boxes.floor[k] < last.offset ? lifted(i, last.offset) : boxes.floor[k];
      if (boxes.least[k] + box(i).size > problem_.capacity) return false;
      boxes.passed_over[k] = static_cast<std::uint8_t>(passed_over(i, boxes.floor[k], last));
    }
    return lift_passed_over(boxes, range) && can_be_stacked(boxes, range);
  }

  // A box that was passed over must stand on a box that is placed later. Raises its bound to the
  // lowest top at any of its positions, its own left out.
  bool lift_passed_over(Unplaced& boxes, Range range) {
    // At each position: the two lowest tops, and the box with the lowest.
    std::fill(scratch_.lowest.begin() + range.begin, scratch_.lowest.begin() + range.end, kNothing);
    std::fill(scratch_.second.begin() + range.begin, scratch_.second.begin() + range.end, kNothing);
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      const Index i = boxes.box[k];
      const Units top = boxes.least[k] + box(i).size;
      each_position(i, range, [&](std::size_t p) {
        if (top < scratch_.lowest[p]) {
          scratch_.second[p] = scratch_.lowest[p];
          scratch_.lowest[p] = top;
          scratch_.lowest_owner[p] = i;
        } else if (top < scratch_.second[p]) {
          scratch_.second[p] = top;
        }
      });
      work_ += static_cast<std::uint64_t>(box(i).upper - box(i).lower);
    }
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      if (boxes.passed_over[k] == 0) continue;
      const Index i = boxes.box[k];
      Units support = kNothing;
      each_position(i, range, [&](std::size_t p) {
        support = std::min(support,
                           scratch_.lowest_owner[p] == i ? scratch_.second[p] : scratch_.lowest[p]);
      });
      if (support == kNothing) return false;
      boxes.least[k] = lifted(i, std::max(boxes.least[k], support));
      if (boxes.least[k] + box(i).size > problem_.capacity) return false;
    }
    return true;
  }

  // Goes down from the highest box. At each position, the boxes that lie at a height or above must
  // fit between that height and the capacity.
  bool can_be_stacked(const Unplaced& boxes, Range range) {
    scratch_.by_height.resize(boxes.count());
    std::iota(scratch_.by_height.begin(), scratch_.by_height.end(), Index{0});
    std::sort(scratch_.by_height.begin(), scratch_.by_height.end(),
              [&](Index a, Index b) { return boxes.least[a] > boxes.least[b]; });
    std::fill(scratch_.stacked.begin() + range.begin, scratch_.stacked.begin() + range.end, 0);
    const auto stack = [&](Index i, Units offset) {
      Units highest = 0;
      each_position(i, range, [&](std::size_t p) {
        scratch_.stacked[p] += box(i).size;
        highest = std::max(highest, scratch_.stacked[p]);
      });
      return highest <= problem_.capacity - offset;
    };
    auto next_fixed = fixed_.begin();
    for (const Index k : scratch_.by_height) {
      for (; next_fixed != fixed_.end() && offsets_[*next_fixed] >= boxes.least[k]; ++next_fixed) {
        if (!stack(*next_fixed, offsets_[*next_fixed])) return false;
      }
      if (!stack(boxes.box[k], boxes.least[k])) return false;
    }
    return true;
  }

  // Runs of positions at which unplaced boxes live. No box lives in two runs.
  std::vector<Range> runs(const Unplaced& boxes, Range range) {
    std::fill(scratch_.stacked.begin() + range.begin, scratch_.stacked.begin() + range.end, 0);
    for (const Index i : boxes.box)
      each_position(i, range, [&](std::size_t p) { scratch_.stacked[p] = 1; });
    std::vector<Range> found;
    for (std::int32_t p = range.begin; p < range.end; ++p) {
      if (scratch_.stacked[static_cast<std::size_t>(p)] == 0) continue;
      if (found.empty() || found.back().end != p) found.push_back({p, p});
      ++found.back().end;
    }
    return found;
  }

  // A key of all facts that decide whether a sub-problem has a solution: for each box, its floor,
  // or that it was passed over there; and the height of the last box if any was passed over.
  std::uint64_t key_of(const Unplaced& boxes, const Last& last) const {
    std::uint64_t key = 0;
    bool any_passed_over = false;
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      const bool passed = boxes.passed_over[k] != 0;
      any_passed_over = any_passed_over || passed;
      const auto floor = static_cast<std::uint64_t>(passed ? kNothing : boxes.floor[k]);
      key += mix((std::uint64_t{boxes.box[k]} << 32) + 0x9e3779b97f4a7c15ull + floor);
    }
    return any_passed_over ? mix(key + static_cast<std::uint64_t>(last.offset)) : key;
  }

  std::size_t take_frame() {
    if (used_ == frames_.size()) frames_.emplace_back();
    frames_[used_].clear();
    return used_++;
  }

  // Places all boxes of the frame, or returns false with none of them placed.
  bool solve(std::size_t frame, Range range, const Last& last) {
    Unplaced& boxes = frames_[frame];
    if (boxes.count() == 0) return true;
    if (exhausted()) return false;
    work_ += boxes.count();
    if (!bound(boxes, range, last)) return false;
    const std::vector<Range> parts = runs(boxes, range);
    if (parts.size() > 1) return solve_apart(frame, parts, last);
    const std::uint64_t key = key_of(boxes, last);
    if (failures_.contains(key)) return false;
    if (place_one(frame, parts.front(), last)) return true;
    if (!exhausted()) failures_.insert(key);
    return false;
  }

  // Solves the parts on their own, the smallest first, because it fails soonest.
  bool solve_apart(std::size_t frame, const std::vector<Range>& parts, const Last& last) {
    const std::size_t mark = used_;
    std::vector<std::size_t> frames;
    for (std::size_t part = 0; part < parts.size(); ++part) frames.push_back(take_frame());
    const Unplaced& boxes = frames_[frame];
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      std::size_t part = 0;
      while (box(boxes.box[k]).lower >= parts[part].end) ++part;
      frames_[frames[part]].add(boxes.box[k], boxes.floor[k]);
    }
    std::vector<std::size_t> order(parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return frames_[frames[a]].count() < frames_[frames[b]].count();
    });
    const bool solved = std::all_of(order.begin(), order.end(), [&](std::size_t part) {
      return solve(frames[part], parts[part], last);
    });
    // Takes back the boxes of the parts before the one that failed.
    if (!solved) {
      for (const Index i : frames_[frame].box) placed_[i] = 0;
    }
    used_ = mark;
    return solved;
  }

  // Indices in `boxes` of the boxes that may come next, lowest first.
  std::vector<std::size_t> candidates(const Unplaced& boxes, const Last& last) const {
    // A box at or above the lowest possible top of another would leave that one room to sink.
    Units below = kNothing;
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      below = std::min(below, std::max(boxes.floor[k], last.offset) + box(boxes.box[k]).size);
    }
    std::vector<std::size_t> found;
    for (std::size_t k = 0; k < boxes.count(); ++k) {
      if (boxes.floor[k] < below && boxes.passed_over[k] == 0) found.push_back(k);
    }
    std::stable_sort(found.begin(), found.end(),
                     [&](std::size_t a, std::size_t b) { return boxes.floor[a] < boxes.floor[b]; });
    return found;
  }

  // Sets `next` to the boxes that remain when box k stands on its floor.
  void fill_next(const Unplaced& boxes, std::size_t k, Unplaced& next) const {
    const SkylineBox& placed = box(boxes.box[k]);
    const Units top = boxes.floor[k] + placed.size;
    next.clear();
    for (std::size_t j = 0; j < boxes.count(); ++j) {
      if (j == k) continue;
      const Index i = boxes.box[j];
      const bool raised = boxes.floor[j] < top && meet(box(i), placed);
      next.add(i, raised ? lifted(i, top) : boxes.floor[j]);
    }
  }

  // Tries each candidate on its floor, and solves the rest above it.
  bool place_one(std::size_t frame, Range range, const Last& last) {
    const std::vector<std::size_t> choices = candidates(frames_[frame], last);
    const std::size_t next = take_frame();
    for (std::size_t n = 0; n < choices.size(); ++n) {
      Unplaced& boxes = frames_[frame];
      const Index i = boxes.box[choices[n]];
      const Last placed{boxes.floor[choices[n]], i};
      fill_next(boxes, choices[n], frames_[next]);
      offsets_[i] = placed.offset;
      placed_[i] = 1;
      if (solve(next, range, placed)) return true;
      placed_[i] = 0;
      used_ = next + 1;
      if (exhausted()) break;
      // From now on, all choices so far count as passed over.
      if (n + 1 < choices.size() && !bound(boxes, range, placed)) break;
    }
    used_ = next;
    return false;
  }

  const SkylineProblem& problem_;
  const std::uint64_t work_budget_;
  std::uint64_t work_ = 0;
  Failures failures_;
  std::vector<std::uint8_t> placed_;           // by box; fixed boxes have 0
  std::vector<Units> offsets_;                 // by box
  std::vector<Index> fixed_;                   // the fixed boxes, highest first
  std::vector<std::vector<Index>> obstacles_;  // by box: fixed boxes that meet it, lowest first
  struct Alike {
    std::vector<std::optional<Index>> twin;  // by box: an earlier one of equal lifetime and size
    std::vector<std::size_t> group_of;       // by box
    std::vector<std::vector<Index>> groups;  // boxes of equal lifetime, in order
  } alike_;
  std::deque<Unplaced> frames_;  // a stack; a deque keeps references valid
  std::size_t used_ = 0;
  struct Scratch {
    std::vector<Units> lowest, second, stacked;  // by position
    std::vector<Index> lowest_owner;             // by position
    std::vector<Index> by_height;                // by box
  } scratch_;
};

SkylineSearch::SkylineSearch(const SkylineProblem& problem, std::uint64_t work_budget)
    : impl_(std::make_unique<Impl>(problem, work_budget)) {}

SkylineSearch::~SkylineSearch() = default;

SkylineOutcome SkylineSearch::run() {
  return impl_->run();
}

const std::vector<SkylineUnits>& SkylineSearch::offsets() const {
  return impl_->offsets();
}

std::uint64_t SkylineSearch::work() const {
  return impl_->work();
}

}  // namespace sluice::packing
