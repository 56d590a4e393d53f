// Windows over skyline searches, as exact_packing.hpp describes.
//
// Instance holds the boxes, their live sums by position, and seven orders of ties. An Attempt
// places boxes window by window; each step is a SkylineSearch over the boxes that the window meets,
// in which some are free and the others are fixed. pack_exactly restarts attempts with other ways
// of growing, by budgets in the Luby sequence, until one succeeds, one proves that no packing
// exists, or the budget is spent.
#include "allocator/packing/exact_packing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <numeric>
#include <optional>

#include "base/error.hpp"
#include "base/rng.hpp"

namespace sluice::packing {
namespace {

using Units = SkylineUnits;
using Order = std::vector<std::uint32_t>;

constexpr Units kFree = -1;

struct Window {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool meets(const Box& box) const { return box.lower < end && begin < box.upper; }
};

// Keys that order boxes at one height; larger values come first. An order has three keys, the most
// important first.
enum class Key : std::uint8_t { kDuration, kArea, kContention, kSize, kLateEnd, kEarlyStart };
constexpr std::size_t kKeys = 6;
constexpr std::array<std::array<Key, 3>, 7> kTieOrders{{
    {Key::kDuration, Key::kArea, Key::kContention},
    {Key::kContention, Key::kArea, Key::kDuration},
    {Key::kContention, Key::kDuration, Key::kArea},
    {Key::kLateEnd, Key::kDuration, Key::kArea},
    {Key::kEarlyStart, Key::kDuration, Key::kArea},
    {Key::kSize, Key::kDuration, Key::kContention},
    {Key::kContention, Key::kLateEnd, Key::kDuration},
}};

// The boxes with all that every attempt needs: sums, orders, and the unit of sizes.
class Instance {
 public:
  Instance(std::span<const Box> boxes, std::span<const std::uint64_t> durations,
           std::int32_t position_count)
      : boxes_(boxes), load_(static_cast<std::size_t>(position_count)) {
    for (const Box& box : boxes) {
      unit_bytes_ = std::gcd(unit_bytes_, box.bytes);
      for (std::int32_t p = box.lower; p < box.upper; ++p) {
        load_[static_cast<std::size_t>(p)] += box.bytes;
      }
    }
    std::array<std::vector<double>, kKeys> values;
    const auto of = [&](Key key) -> std::vector<double>& {
      return values[static_cast<std::size_t>(key)];
    };
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const auto duration = static_cast<double>(durations[i]);
      const auto size = static_cast<double>(boxes[i].bytes);
      of(Key::kDuration).push_back(duration);
      of(Key::kArea).push_back(duration * size);
      of(Key::kSize).push_back(size);
      of(Key::kLateEnd).push_back(boxes[i].upper);
      of(Key::kEarlyStart).push_back(-boxes[i].lower);
      of(Key::kContention)
          .push_back(static_cast<double>(
              *std::max_element(load_.begin() + boxes[i].lower, load_.begin() + boxes[i].upper)));
    }
    for (const auto& keys : kTieOrders) {
      Order order(boxes.size());
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        for (const Key key : keys) {
          if (of(key)[a] != of(key)[b]) return of(key)[a] > of(key)[b];
        }
        return false;
      });
      orders_.push_back(std::move(order));
    }
  }

  std::span<const Box> boxes() const { return boxes_; }
  const std::vector<std::uint64_t>& load() const { return load_; }
  const std::vector<Order>& orders() const { return orders_; }
  std::vector<std::int32_t> fullest() const {
    const std::uint64_t most = *std::max_element(load_.begin(), load_.end());
    std::vector<std::int32_t> positions;
    for (std::size_t p = 0; p < load_.size(); ++p) {
      if (load_[p] == most) positions.push_back(static_cast<std::int32_t>(p));
    }
    return positions;
  }
  std::vector<std::uint64_t> to_bytes(const std::vector<Units>& offsets) const {
    std::vector<std::uint64_t> bytes;
    for (const Units offset : offsets) {
      bytes.push_back(static_cast<std::uint64_t>(offset) * unit_bytes_);
    }
    return bytes;
  }
  std::uint64_t unit_bytes() const { return unit_bytes_; }
  Window whole() const { return {0, static_cast<std::int32_t>(load_.size())}; }

 private:
  std::span<const Box> boxes_;
  std::vector<std::uint64_t> load_;  // live bytes by position
  std::vector<Order> orders_;
  std::uint64_t unit_bytes_ = 0;
};

// A way in which windows grow.
struct Growth {
  std::size_t boxes_each = 4;            // about as many boxes are taken in at a time
  std::uint64_t least_budget = 300'000;  // first budget of a search, for each order
  std::int32_t least_reach = 8;          // boxes are first set free so many positions from the edge
  std::size_t start = 0;                 // index into the fullest positions
  std::size_t first_order = 0;
};

// A partial packing, which grows from window to window.
class Attempt {
 public:
  Attempt(const Instance& instance, Units capacity, std::uint64_t work_budget)
      : instance_(instance),
        capacity_(capacity),
        work_budget_(work_budget),
        offsets_(instance.boxes().size(), kFree) {}

  // Searches the whole timeline at once, with each order in turn.
  SkylineOutcome search_whole() {
    const std::vector<bool> all(offsets_.size(), true);
    return search(instance_.whole(), all, 0, work_budget_ / instance_.orders().size());
  }

  // Grows a window outwards from one of the fullest positions.
  SkylineOutcome grow(const Growth& growth) {
    const std::vector<std::uint64_t>& load = instance_.load();
    const std::vector<std::int32_t> fullest = instance_.fullest();
    const std::int32_t start = fullest[growth.start % fullest.size()];
    Window window{start, start + 1};
    bool leftwards = false;
    while (true) {
      const SkylineOutcome outcome = repack(window, leftwards, growth);
      if (outcome != SkylineOutcome::kPacked) return outcome;
      const Window whole = instance_.whole();
      if (window.begin == whole.begin && window.end == whole.end) return outcome;
      // The window grows towards the fuller side.
      const auto at = [&](std::int32_t p) { return load[static_cast<std::size_t>(p)]; };
      leftwards = window.end == whole.end ||
                  (window.begin > whole.begin && at(window.begin - 1) >= at(window.end));
      do {
        leftwards ? --window.begin : ++window.end;
      } while ((leftwards ? window.begin > whole.begin : window.end < whole.end) &&
               count_unplaced(window) < growth.boxes_each);
    }
  }

  std::uint64_t work() const { return work_; }
  const std::vector<Units>& offsets() const { return offsets_; }

 private:
  // Accounts for a walk over all boxes, in units of looks at a position.
  void count_walk() { work_ += offsets_.size() / 16 + 1; }

  std::vector<bool> unplaced(Window window) {
    count_walk();
    std::vector<bool> free(offsets_.size());
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      free[i] = offsets_[i] == kFree && window.meets(instance_.boxes()[i]);
    }
    return free;
  }

  std::size_t count_unplaced(Window window) {
    count_walk();
    std::size_t count = 0;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      count += static_cast<std::size_t>(offsets_[i] == kFree && window.meets(instance_.boxes()[i]));
    }
    return count;
  }

  // Places the boxes that the window has taken in, and moves as few placed ones as possible. All
  // choices of movable boxes are tried with a small budget, then with larger ones.
  SkylineOutcome repack(Window window, bool leftwards, const Growth& growth) {
    // Most steps succeed without moving any placed box.
    const SkylineOutcome alone =
        search(window, unplaced(window), growth.first_order, growth.least_budget);
    if (alone == SkylineOutcome::kPacked || work_ >= work_budget_) return alone;
    const std::vector<std::vector<bool>> choices = movable(window, leftwards, growth.least_reach);
    auto first = choices.begin();  // the choices before it were shown to be too small
    for (std::uint64_t budget = growth.least_budget; first != choices.end(); budget *= 2) {
      for (auto free = first; free != choices.end(); ++free) {
        const SkylineOutcome outcome = search(window, *free, growth.first_order, budget);
        if (outcome == SkylineOutcome::kPacked || work_ >= work_budget_) return outcome;
        if (outcome == SkylineOutcome::kImpossible && free == first) ++first;
      }
    }
    return SkylineOutcome::kImpossible;
  }

  // Choices of boxes that may move, the smallest first. Each contains the unplaced boxes. To these
  // it adds the boxes that live only near the moved edge of the window, or all that reach there,
  // within growing distances; the last choice contains all boxes.
  std::vector<std::vector<bool>> movable(Window window, bool leftwards, std::int32_t least_reach) {
    const std::span<const Box> boxes = instance_.boxes();
    const std::int32_t width = window.end - window.begin;
    std::vector<std::pair<std::size_t, std::vector<bool>>> found;
    const auto add = [&](std::int32_t reach, bool only) {
      count_walk();
      std::vector<bool> free(boxes.size());
      std::size_t count = 0;
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        if (!window.meets(boxes[i])) continue;
        const std::int32_t nearest =
            leftwards ? boxes[i].lower - window.begin : window.end - boxes[i].upper;
        const std::int32_t farthest =
            leftwards ? boxes[i].upper - window.begin : window.end - boxes[i].lower;
        free[i] = offsets_[i] == kFree || (only ? farthest <= reach : nearest < reach);
        count += static_cast<std::size_t>(free[i]);
      }
      const bool known = std::any_of(found.begin(), found.end(),
                                     [&](const auto& other) { return other.first == count; });
      if (!known) found.emplace_back(count, std::move(free));
    };
    for (std::int32_t reach = least_reach; reach < width; reach += (reach + 1) / 2) {
      add(reach, true);
      add(reach, false);
    }
    add(width, false);
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::vector<bool>> choices;
    for (auto& [count, free] : found) choices.push_back(std::move(free));
    return choices;
  }

  // Places the free boxes in the window; the other placed boxes stay.
  SkylineOutcome search(Window window, const std::vector<bool>& free, std::size_t first_order,
                        std::uint64_t budget) {
    const std::vector<Order>& orders = instance_.orders();
    for (std::size_t n = 0; n < orders.size() && work_ < work_budget_; ++n) {
      const Order& order = orders[(first_order + n) % orders.size()];
      std::vector<std::uint32_t> chosen;
      const SkylineProblem problem = sub_problem(window, free, order, chosen);
      SkylineSearch search(problem, std::min(budget, work_budget_ - work_));
      const SkylineOutcome outcome = search.run();
      work_ += search.work();
      count_walk();
      if (outcome == SkylineOutcome::kPacked) {
        for (std::size_t k = 0; k < chosen.size(); ++k) offsets_[chosen[k]] = search.offsets()[k];
      }
      if (outcome != SkylineOutcome::kGaveUp) return outcome;
    }
    return SkylineOutcome::kGaveUp;
  }

  // Sets `chosen` to the instance's indices of the boxes in the problem.
  SkylineProblem sub_problem(Window window, const std::vector<bool>& free, const Order& order,
                             std::vector<std::uint32_t>& chosen) const {
    SkylineProblem problem;
    problem.capacity = capacity_;
    problem.position_count = window.end - window.begin;
    for (const std::uint32_t i : order) {
      const Box& box = instance_.boxes()[i];
      if (!window.meets(box) || (!free[i] && offsets_[i] == kFree)) continue;
      chosen.push_back(i);
      problem.boxes.push_back({std::max(box.lower, window.begin) - window.begin,
                               std::min(box.upper, window.end) - window.begin,
                               static_cast<Units>(box.bytes / instance_.unit_bytes()),
                               free[i] ? kFree : offsets_[i]});
    }
    return problem;
  }

  const Instance& instance_;
  const Units capacity_;
  const std::uint64_t work_budget_;
  std::uint64_t work_ = 0;
  std::vector<Units> offsets_;  // by box; kFree if not placed
};

// 1 1 2 1 1 2 4 1 ...: the budgets of restarts that suit instances of unknown hardness (Luby,
// Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993).
std::uint64_t luby(std::uint64_t n) {
  const std::uint64_t whole = std::bit_ceil(n + 2) - 1;  // the length of the run that contains n
  if (n + 1 == whole) return (whole + 1) / 2;
  return luby(n - whole / 2);
}

// The nth way of growing windows.
Growth growth_of(std::uint64_t n) {
  constexpr std::array<std::size_t, 4> kBoxesEach{4, 2, 8, 3};
  constexpr std::array<std::uint64_t, 3> kLeastBudgets{300'000, 1'000'000, 100'000};
  constexpr std::array<std::int32_t, 3> kLeastReaches{8, 16, 4};
  const CounterRng rng(n, stream_of("allocator/growth"));
  return {.boxes_each = kBoxesEach[rng.below(0, kBoxesEach.size())],
          .least_budget = kLeastBudgets[rng.below(1, kLeastBudgets.size())],
          .least_reach = kLeastReaches[rng.below(2, kLeastReaches.size())],
          .start = rng.below(3, 1u << 16),
          .first_order = rng.below(4, kTieOrders.size())};
}

}  // namespace

ExactPacking pack_exactly(std::span<const Box> boxes, std::span<const std::uint64_t> durations,
                          std::int32_t position_count, std::uint64_t capacity_bytes,
                          std::uint64_t work_budget) {
  SLUICE_CHECK(durations.size() == boxes.size());
  if (boxes.empty()) return {SkylineOutcome::kPacked, {}};
  const Instance instance(boxes, durations, position_count);
  const std::uint64_t units = capacity_bytes / instance.unit_bytes();
  if (units >= std::uint64_t{1} << 29) return {};
  const auto capacity = static_cast<Units>(units);
  for (const Box& box : boxes) {
    if (box.bytes > capacity_bytes) return {SkylineOutcome::kImpossible, {}};
  }
  constexpr std::uint64_t kTurn = 80'000'000;
  std::uint64_t spent = 0;
  for (std::uint64_t n = 0; spent < work_budget; ++n) {
    const std::uint64_t turn = kTurn * luby(n);
    // A search of the whole succeeds quickly or takes very long. So it has a smaller share, and not
    // in every turn.
    const bool whole = n == 0 || luby(n) > 1;
    for (const bool at_once : {true, false}) {
      if ((at_once && !whole) || spent >= work_budget) continue;
      Attempt attempt(instance, capacity, std::min(at_once ? turn / 2 : turn, work_budget - spent));
      const SkylineOutcome outcome = at_once ? attempt.search_whole() : attempt.grow(growth_of(n));
      spent += attempt.work();
      if (outcome == SkylineOutcome::kPacked)
        return {outcome, instance.to_bytes(attempt.offsets())};
      if (outcome == SkylineOutcome::kImpossible) return {outcome, {}};
    }
  }
  return {};
}

}  // namespace sluice::packing
